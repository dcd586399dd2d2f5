// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const (
	old      = 24 * time.Hour  // older than any minimum age here
	patience = 5 * time.Minute // how long a test waits for what a busy machine does late
	nerdctl  = "default-5c7b9a1e5c7b9a1e5c7b9a1e5c7b9a1e5c7b9a1e5c7b9a1e5c7b9a1e5c7b9a1e"
)

var dryRun = gc.Options{DryRun: true}

// A node is a Node object with the boot ID of this machine, a namespace for its pods, and a data
// directory of the real plugin with a dual-stack network.
type node struct {
	t               *testing.T
	ctx             context.Context
	name, namespace string
	client          *kubernetes.Clientset // with all permissions
	plugin          *plugintest.Plugin
	ips             map[string][]netip.Addr // the addresses of each container
	want            map[string]gc.Verdict   // the verdict on the reservations of each container
	report          gc.Report               // of the last pass that succeeded
}

func newNode(t *testing.T) *node {
	n := &node{
		t: t, ctx: t.Context(), name: fmt.Sprintf("node-%d", time.Now().UnixNano()), client: kubernetes.NewForConfigOrDie(cluster.config()),
		plugin: plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/16"}, plugintest.Range{Subnet: "fd00:1::/64"}),
		ips:    make(map[string][]netip.Addr), want: make(map[string]gc.Verdict),
	}
	n.namespace = "of-" + n.name
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.namespace}}
	must(n.client.CoreV1().Namespaces().Create(n.ctx, ns, metav1.CreateOptions{}))
	n.register()
	return n
}

// register creates the Node object, as kubelet does.
func (n *node) register() *corev1.Node {
	must(n.client.CoreV1().Nodes().Create(n.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{}))
	return n.setStatus(func(s *corev1.NodeStatus) {
		s.NodeInfo.BootID = strings.TrimSpace(string(must(os.ReadFile("/proc/sys/kernel/random/boot_id"))))
		s.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	})
}

// setStatus changes the Node's status, as kubelet or the node controller does.
func (n *node) setStatus(change func(*corev1.NodeStatus)) *corev1.Node {
	object := must(n.client.CoreV1().Nodes().Get(n.ctx, n.name, metav1.GetOptions{}))
	change(&object.Status)
	return must(n.client.CoreV1().Nodes().UpdateStatus(n.ctx, object, metav1.UpdateOptions{}))
}

// containerID returns an ID of 64 hexadecimal digits for a container, except for that of nerdctl.
func containerID(container string) string {
	if container == nerdctl {
		return container
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(container)))
}

// reserve makes the plugin reserve addresses for a container, and sets the age of the
// reservations and the expected verdict.
func (n *node) reserve(container string, age time.Duration, want gc.Verdict) {
	n.ips[container], n.want[container] = must(n.plugin.Add(n.ctx, containerID(container), "eth0")), want
	for _, ip := range n.ips[container] {
		check(os.Chtimes(n.plugin.File(ip), time.Time{}, ago(age).Time))
	}
}

// source returns a source of New.
func (n *node) source(client kube.Client, opts kube.Options) podsource.Source {
	return must(kube.New(client, n.name, opts))
}

// pass runs one pass over the node's network with the given source.
func (n *node) pass(source podsource.Source, opts gc.Options) (gc.Report, error) {
	opts.SourceTimeout = 2 * patience
	return must(gc.New(hostlocal.New(n.plugin.DataDir), []string{n.plugin.Network}, source, opts)).Reconcile(n.ctx)
}

// collect runs one pass with the API server as the source, and checks the verdicts.
func (n *node) collect() {
	n.t.Helper()
	n.collectWith(n.source(n.client.CoreV1(), kube.Options{}), gc.Options{})
}

// collectWith runs one pass, and checks the verdicts, and that the files agree with them. What
// it releases is not expected by the next pass.
func (n *node) collectWith(source podsource.Source, opts gc.Options) {
	n.t.Helper()
	report, err := n.pass(source, opts)
	if n.report = report; err != nil {
		n.t.Fatal(err)
	}
	want, got := make(map[string]gc.Verdict), make(map[string]gc.Verdict) // by container ID and address
	for container, verdict := range n.want {
		for _, ip := range n.ips[container] {
			want[containerID(container)+" "+ip.String()] = verdict
			_, err := os.Lstat(n.plugin.File(ip))
			if gone := errors.Is(err, fs.ErrNotExist); gone != (verdict == gc.Released) {
				n.t.Errorf("the verdict on %s of %s must be %v, but for its file os.Lstat returned: %v", ip, container, verdict, err)
			}
		}
		if verdict == gc.Released {
			delete(n.want, container)
		}
	}
	for _, e := range n.report.Reservations {
		got[e.ContainerID+" "+e.IP.String()] = e.Verdict
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// refused runs one pass, which must fail and release nothing, with an error that wraps want.
func (n *node) refused(source podsource.Source, want error, says string) {
	n.t.Helper()
	report, err := n.pass(source, gc.Options{})
	if !errors.Is(err, want) || !strings.Contains(err.Error(), says) || report.Counts()[gc.Released] != 0 {
		n.t.Errorf("got %v, %v, want the error %v that says %q", report.Counts(), err, want, says)
	}
}

// eventually returns when ok returns true.
func (n *node) eventually(ok func() bool) {
	n.t.Helper()
	poll := func(context.Context) (bool, error) { return ok(), nil }
	if err := wait.PollUntilContextTimeout(n.ctx, 20*time.Millisecond, patience, true, poll); err != nil {
		n.t.Fatal(err)
	}
}

// until waits for an answer of the source for which ok returns true.
func (n *node) until(source podsource.Source, ok func(podsource.Answer) bool) {
	n.eventually(func() bool {
		a, err := source.Pods(n.ctx)
		return err == nil && ok(a)
	})
}

// listed waits until the source returns that many pods.
func (n *node) listed(source podsource.Source, pods int) {
	n.until(source, func(a podsource.Answer) bool { return len(a.Pods) == pods })
}

// pod creates a pod that is bound to the node, and then writes its status, as kubelet does.
func (n *node) pod(name string, changes ...change) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "main", Image: "registry.example/main:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ago(2 * old)},
	}
	for _, c := range changes {
		c(n, pod)
	}
	must(n.client.CoreV1().Pods(n.namespace).Create(n.ctx, pod, metav1.CreateOptions{}))
	n.change(name, func(_ *node, made *corev1.Pod) { made.Status = pod.Status })
}

// web creates a pod with the addresses of a container of the same name, which are in use.
func (n *node) web(name string) {
	n.reserve(name, old, gc.InUse)
	n.pod(name, with(name))
}

// change changes a pod's status, as kubelet does, or else the rest of the pod.
func (n *node) change(name string, changes ...change) {
	pod := must(n.client.CoreV1().Pods(n.namespace).Get(n.ctx, name, metav1.GetOptions{}))
	before := pod.DeepCopy()
	for _, c := range changes {
		c(n, pod)
	}
	if equality.Semantic.DeepEqual(before.Status, pod.Status) {
		must(n.client.CoreV1().Pods(n.namespace).Update(n.ctx, pod, metav1.UpdateOptions{}))
	} else {
		must(n.client.CoreV1().Pods(n.namespace).UpdateStatus(n.ctx, pod, metav1.UpdateOptions{}))
	}
}

// remove deletes a pod with a grace period in seconds.
func (n *node) remove(name string, grace int64) {
	check(n.client.CoreV1().Pods(n.namespace).Delete(n.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}
