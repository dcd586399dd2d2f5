// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const thisNode = "node-1"

// kubePod is a pod in the API.
func kubePod(namespace, name, node, ip string) corev1.Pod {
	p := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}
	if ip == "" {
		p.Status.Phase = corev1.PodPending
	}
	return p
}

// kubectl returns the output of `kubectl get pods -o json`.
func kubectl(t testing.TB, pods ...corev1.Pod) string {
	t.Helper()
	items := append([]corev1.Pod{}, pods...)
	list := map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": ""}, "items": items}
	text, err := json.MarshalIndent(list, "", "    ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

var namespaces = [2]string{"shop", "db"}

// crictl returns the output of `crictl pods -o json` for sandboxes of pods with these IDs.
func crictl(ids ...string) string {
	var items []string
	for i, id := range ids {
		items = append(items, fmt.Sprintf(`    {
      "id": %q,
      "metadata": {"name": "web-%d", "uid": "uid-web-%d", "namespace": %q, "attempt": 0},
      "state": %q,
      "createdAt": "1751371200000000000",
      "labels": {"io.kubernetes.pod.name": "web-%d"},
      "annotations": {"id": "x", "items": "[]"},
      "runtimeHandler": ""
    }`, id, i, i, namespaces[i%2], []string{"SANDBOX_READY", "SANDBOX_NOTREADY"}[i%2], i))
	}
	return "{\n  \"items\": [\n" + strings.Join(items, ",\n") + "\n  ]\n}\n"
}

// answerOf returns the answer of file:- for a text.
func answerOf(t testing.TB, text string) (podsource.Answer, error) {
	t.Helper()
	s, err := New("-", strings.NewReader(text), thisNode)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Pods(t.Context())
	a.AsOf = time.Time{} // see TestAsOf
	return a, err
}

func TestPrinted(t *testing.T) {
	a1, b1 := strings.Repeat("a1", 32), strings.Repeat("b1", 32)
	web, proxy := kubePod("shop", "web-0", thisNode, "10.244.1.5"), kubePod("kube-system", "proxy", thisNode, "192.168.0.1")
	proxy.Spec.HostNetwork = true
	other, unscheduled := kubePod("shop", "web-9", "node-2", "10.244.2.5"), kubePod("shop", "late", "", "")
	broken := kubePod("shop", "broken", "node-2", "pending")
	raw := func(kind, metadata string, pods ...corev1.Pod) string { // as the API server sends it
		for i := range pods {
			pods[i].TypeMeta = metav1.TypeMeta{}
		}
		return strings.NewReplacer(`"kind": "List"`, fmt.Sprintf(`"kind": %q`, kind), `"resourceVersion": ""`, metadata).Replace(kubectl(t, pods...))
	}
	webPod := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web-0"}, UID: "uid-web-0",
		IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}}
	proxyPod := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "kube-system", Name: "proxy"}, UID: "uid-proxy", HostNetwork: true}
	sandbox := func(id string, i int) podsource.Pod {
		return podsource.Pod{NamespacedName: types.NamespacedName{Namespace: namespaces[i%2], Name: fmt.Sprintf("web-%d", i)},
			UID: types.UID(fmt.Sprintf("uid-web-%d", i)), ContainerIDs: []string{id}}
	}
	const cri = podsource.SandboxContainers
	for _, row := range []struct {
		reason, text string
		want         podsource.Answer
		says         string // part of the error, or empty
	}{
		{reason: "kubectl get pods -A", text: kubectl(t, web, proxy), want: podsource.Answer{Pods: []podsource.Pod{webPod, proxyPod}, Networks: every}},
		{reason: "... of all nodes: others' pods hold nothing here, even what can't be read", text: kubectl(t, other, web, broken, unscheduled, proxy),
			want: podsource.Answer{Pods: []podsource.Pod{webPod, proxyPod}, Networks: every}},
		{reason: "an address that can't be read spoils its pod", text: kubectl(t, kubePod("shop", "web-0", thisNode, "010.244.1.5"), proxy),
			want: podsource.Answer{Pods: []podsource.Pod{{NamespacedName: webPod.NamespacedName, UID: webPod.UID, MoreIPs: true}, proxyPod}, Networks: every,
				Note: "1 pods may have more addresses than known, one is shop/web-0: its status or k8s.v1.cni.cncf.io/network-status can't be read"}},
		{reason: "kubectl get --raw", text: raw("PodList", `"resourceVersion": "7"`, web, proxy), want: podsource.Answer{Pods: []podsource.Pod{webPod, proxyPod}, Networks: every}},
		{reason: "without -A: the other namespaces are missing", text: kubectl(t, web), want: podsource.Answer{Pods: []podsource.Pod{webPod}, Supplementary: true,
			Note: "all pods are of namespace shop, so the list only keeps, and lets nothing go: without -A kubectl prints no others, and with -A leave out --field-selector (the pods of this node are picked here)"}},
		{reason: "crictl pods: live in any state", text: crictl(a1, b1), want: podsource.Answer{Pods: []podsource.Pod{sandbox(a1, 0), sandbox(b1, 1)}, Networks: every, Names: cri}},
		{reason: "crictl pods, and there are none: that is for the caller to judge", text: crictl(), want: podsource.Answer{Networks: every, Names: cri}},
		{reason: "crictl pods --namespace: the other namespaces are missing", text: crictl(a1), want: podsource.Answer{Pods: []podsource.Pod{sandbox(a1, 0)}, Supplementary: true,
			Note: "all sandboxes are of namespace shop: without those of others (crictl pods, without --namespace) the list only keeps, and lets nothing go"}},
		{reason: "a sandbox without metadata", text: `{"items":[{"id":"x"},{"id":"y","metadata":{"namespace":"db"}}]}`,
			want: podsource.Answer{Pods: []podsource.Pod{{ContainerIDs: []string{"x"}}, {NamespacedName: types.NamespacedName{Namespace: "db"}, ContainerIDs: []string{"y"}}}, Networks: every, Names: cri}},

		{reason: "one page of several", text: raw("PodList", `"continue": "abc"`, web, proxy), says: "one page of a longer list"},
		{reason: "kubectl get pod NAME", text: `{"apiVersion":"v1","kind":"Pod","metadata":{}}`, says: "has no array of items"},
		{reason: "other things among the pods", text: strings.Replace(kubectl(t, web, proxy), `"Pod"`, `"Service"`, 1), says: `item 1 is a "Service", and not a Pod`},
		{reason: "a list of no kind", text: raw("List", `"resourceVersion": ""`, web, proxy), says: `item 1 is a "", and not a Pod`},
		{reason: "a list of others", text: `{"kind":"NodeList","items":[{}]}`, says: `its kind is "NodeList"`},
		{reason: "a pod without a name", text: kubectl(t, web, kubePod("shop", "", thisNode, "")), says: "item 2: "},
		{reason: "a field of the wrong type", text: strings.Replace(kubectl(t, web), `"10.244.1.5"`, `[]`, 1), says: "item 1: "},
		{reason: "null for a pod", text: `{"kind":"List","items":[null]}`, says: `item 1 is a ""`},
		{reason: "another node's pods", text: kubectl(t, other, broken, unscheduled), says: `none of its 3 pods is on node node-1, but on ["node-2"]; is that the node's name? set NODE_NAME`},
		{reason: "no pods: kubectl was asked for a namespace that has none", text: kubectl(t), says: "none of its 0 pods is on node node-1"},
		{reason: "kubectl's metadata is none", text: `{"kind":"List","metadata":7,"items":[]}`, says: "its metadata"},
		{reason: "a sandbox without an ID", text: `{"items":[{"id":"x"},{"Id":""}]}`, says: "sandbox 2 has no id"},
		{reason: "null for a sandbox", text: `{"items":[null]}`, says: "sandbox 1 has no id"},
		{reason: "a number for an ID", text: `{"items":[{"id":7}]}`, says: "sandbox 1: "},
		{reason: "crictl ps", text: `{"containers":[{"id":"x"}]}`, says: "has no array of items"},
		{reason: "null for the items", text: `{"items":null}`, says: "has no array of items"},
		{reason: "the items twice", text: `{"items":[{"id":"x"}],"items":[]}`, says: `duplicate field "items"`},
		{reason: "in other letters", text: `{"Items":[{"id":"x"}]}`, says: "has no array of items"},
		{reason: "two objects, as of kubectl --watch", text: kubectl(t, web, proxy) + kubectl(t, web, proxy), says: "after top-level value"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			got, err := answerOf(t, row.text)
			if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Errorf("error %v does not say %q", err, row.says)
			}
			row.want.Source = "file"
			if diff := cmp.Diff(row.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, text := range []string{kubectl(t, web, proxy), crictl(a1, b1)} {
		text = strings.TrimSpace(text)
		for n := range len(text) {
			if a, err := answerOf(t, text[:n]); err == nil || a.Pods != nil {
				t.Errorf("the first %d bytes are taken for %d pods", n, len(a.Pods))
			}
		}
	}
}

// check makes a pass with a file of this text and age over a node with one network. For a day it has had the addresses of an
// ended container and of a live pod's container, and for an hour that of a third one: ended, live and later are their reasons.
func check(t *testing.T, text string, ago time.Duration, ended, live, later gc.Reason) {
	t.Helper()
	gctest.Uptime(t, 7*24*time.Hour)
	dir := gctest.NewDir(t)
	dir.Reserve("n", "10.244.1.4", gctest.ContainerID("ended"), 24*time.Hour)
	dir.Reserve("n", "10.244.1.5", strings.Repeat("a1", 32), 24*time.Hour)
	dir.Reserve("n", "10.244.1.6", gctest.ContainerID("later"), time.Hour)
	path, at := filepath.Join(t.TempDir(), "pods"), time.Now().Add(-ago)
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
	s, err := New(path, nil, thisNode)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gc.New(dir.Store, []string{"n"}, s, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.Reconcile(t.Context())
	var got []gc.Reason
	for _, e := range report.Reservations {
		got = append(got, e.Reason)
	}
	if diff := cmp.Diff([]gc.Reason{ended, live, later}, got); diff != "" || err != nil {
		t.Errorf("written %v ago, error %v (-want +got):\n%s\n%s", ago, err, diff, text)
	}
}

// kubectl or crictl printed the pods of one namespace. Pods of others hold addresses, too.
func TestHazard54ListOfOneNamespace(t *testing.T) {
	for text, inUse := range map[string]gc.Reason{
		kubectl(t, kubePod("shop", "web", thisNode, "10.244.1.5")): gc.AddressClaimed,
		crictl(strings.Repeat("a1", 32)):                           gc.ContainerLive,
	} {
		check(t, text, 0, gc.NoSourceForNetwork, inUse, gc.NoSourceForNetwork)
	}
}
