// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// intercepted returns a client that calls before with each request for pods.
func intercepted(contentType string, before func(*http.Request)) kube.Client {
	config := cluster.config()
	config.ContentType = contentType // if it is empty, client-go chooses
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return trip(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/pods") {
				before(r)
			}
			return next.RoundTrip(r)
		})
	})
	return kubernetes.NewForConfigOrDie(config).CoreV1()
}

// lister runs informers of Nodes and of the pods in a namespace until the test ends. It returns a
// source of their listers that is in sync, and the informer of pods.
func (n *node) lister(namespace string) (podsource.Source, cache.SharedIndexInformer) {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(namespace))
	nodes, pods := factory.Core().V1().Nodes().Lister(), factory.Core().V1().Pods().Informer()
	source := must(kube.FromLister(pods, n.name, kube.Options{
		GetNode: func(_ context.Context, name string) (*corev1.Node, error) { return nodes.Get(name) },
	}))
	factory.Start(n.ctx.Done())
	n.t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(n.ctx.Done())
	n.refused(source, podsource.ErrIncomplete, "not known to be in sync") // the first list may be from the server's watch cache
	n.pod("event", onHostNetwork)
	n.until(source, func(podsource.Answer) bool { return true })
	return source, pods
}

// Every way to list the pods gives the same verdicts.
func TestWaysToList(t *testing.T) {
	n := newNode(t)
	for i := range 12 {
		n.web(fmt.Sprint("web-", i))
	}
	n.reserve("elsewhere", old, gc.Leaked)
	n.pod("elsewhere", with("elsewhere"), onAnotherNode)
	ofAllNodes, _ := n.lister(metav1.NamespaceAll) // with one more pod
	for way, source := range map[string]podsource.Source{
		"in one page":              n.source(n.client.CoreV1(), kube.Options{}),
		"in pages, as JSON":        n.source(intercepted("application/json", func(*http.Request) {}), kube.Options{PageSize: 5}),
		"an informer of all nodes": ofAllNodes,
	} {
		t.Log(way)
		n.listed(source, 13) // a cache may be late
		n.collectWith(source, dryRun)
	}
}

// While the server is down nothing is released. A list that began before is complete, or an error:
// a part of it is never returned.
func TestServerStopsAndRestarts(t *testing.T) {
	n := newNode(t)
	for i := range 5 {
		n.web(fmt.Sprint("web-", i))
	}
	t.Cleanup(cluster.start)
	for _, row := range []struct {
		reason string
		list   int // before this request for pods
		do     func()
	}{
		{"it stops after it returned the Node", 1, cluster.crash},
		{"it stops between two pages", 2, cluster.crash},
		{"it restarts between two pages, and accepts the token of the first page", 2, func() { cluster.crash(); cluster.start() }},
		{"the first page's version was compacted (410): a new list", 2, func() { n.compact(); cluster.crash(); cluster.start() }},
	} {
		t.Log(row.reason)
		source := n.source(intercepted("", func(*http.Request) {
			if row.list--; row.list == 0 {
				row.do()
			}
		}), kube.Options{PageSize: 2})
		if strings.Contains(row.reason, "stops") {
			n.refused(source, podsource.ErrIncomplete, "listing its pods: no answer from the API server")
			n.refused(source, podsource.ErrIncomplete, "no answer from the API server, is it up")
			cluster.start()
		}
		n.collectWith(source, gc.Options{})
	}
}

// compact removes all older versions from etcd.
func (n *node) compact() {
	client := must(clientv3.New(clientv3.Config{Endpoints: []string{"unix:" + filepath.Join(cluster.dir, "client.sock:1")}}))
	defer func() { _ = client.Close() }()
	n.pod("later", onAnotherNode) // for a later version than that of the page
	must(client.Compact(n.ctx, must(client.Get(n.ctx, "compact_rev_key")).Header.Revision))
}

// A list that is empty, or lacks the agent's own pod, is an error (R9).
// Guard: [gc.ErrNoPods] and [podsource.Require]: the source never sets Authoritative.
func TestHazard06EmptyOrWithoutTheAgent(t *testing.T) {
	n := newNode(t)
	n.reserve("held", old, gc.InUse)
	source := n.source(n.client.CoreV1(), kube.Options{})
	n.refused(source, gc.ErrNoPods, "")
	n.pod("other", onHostNetwork)
	n.refused(podsource.Require(source, types.NamespacedName{Namespace: n.namespace, Name: "agent"}), podsource.ErrIncomplete, "agent")
}

// The name is wrong, or the list is that of an older node with the same name (R9). Without the
// check each of these passes would release the address of a live pod.
// Guard: [Source.sameNode] compares the boot ID and the UID.
func TestHazard23WrongNode(t *testing.T) {
	n := newNode(t)
	n.reserve("live", old, gc.Leaked)
	n.pod("of-before", onHostNetwork)
	n.collectWith(n.source(n.client.CoreV1(), kube.Options{SkipNodeCheck: true}), dryRun)
	source := n.source(n.client.CoreV1(), kube.Options{})
	then := n.setStatus(func(s *corev1.NodeStatus) { s.NodeInfo.BootID = "another" })
	n.refused(source, podsource.ErrPermanent, "boot ID another, but this kernel's is ")
	n.setStatus(func(s *corev1.NodeStatus) { s.Conditions[0].LastHeartbeatTime = *ago(100 * 365 * old) })
	n.refused(source, podsource.ErrIncomplete, "kubelet has not reported since the boot")
	// The Node is deleted and created again by this machine's kubelet: only the UID differs.
	check(n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	n.refused(source, podsource.ErrPermanent, "there is no such Node")
	now := n.register()
	n.refused(n.source(n.client.CoreV1(), kube.Options{NodeUID: then.UID}), podsource.ErrPermanent,
		fmt.Sprintf("its Node has the UID %s, expected %s", now.UID, then.UID))
}

// A filtered informer passes every check, and the pods that it leaves out lose their addresses,
// unless the filter leaves out the required pod, too.
// Guard: [podsource.Require], and that [New] lists all namespaces.
func TestHazard54FilteredInformer(t *testing.T) {
	n, other := newNode(t), newNode(t)
	other.name, other.plugin, other.ips, other.want = n.name, n.plugin, n.ips, n.want // pods in a second namespace
	n.pod("agent", onHostNetwork)
	other.web("web")
	n.collectWith(n.source(n.client.CoreV1(), kube.Options{}), dryRun)
	filtered, _ := n.lister(n.namespace)
	n.want["web"] = gc.Leaked
	n.collectWith(filtered, dryRun)
	n.refused(podsource.Require(filtered, types.NamespacedName{Namespace: other.namespace, Name: "web"}), podsource.ErrIncomplete, "web")
}

// Kubelet's certificate has expired. It runs pods that the control plane does not know, and the
// node controller sets Ready=Unknown.
// Guard: [checkReporting] returns an error for a Node that is Ready=Unknown.
func TestHazard55NodeUnknown(t *testing.T) {
	n := newNode(t)
	n.web("web")
	lister, _ := n.lister(metav1.NamespaceAll)
	ways := []podsource.Source{n.source(n.client.CoreV1(), kube.Options{}), lister}
	n.setStatus(func(s *corev1.NodeStatus) { // as kube-controller-manager does (pkg/controller/nodelifecycle)
		s.Conditions[0].Status, s.Conditions[0].Message = corev1.ConditionUnknown, "Kubelet stopped posting node status."
	})
	for _, source := range ways {
		n.eventually(func() bool { // an informer has the Node
			_, err := source.Pods(t.Context())
			return err != nil
		})
		n.refused(source, podsource.ErrIncomplete, "Ready=Unknown")
	}
	n.setStatus(func(s *corev1.NodeStatus) { s.Conditions[0].Status = corev1.ConditionFalse })
	n.collect() // kubelet reports that the node is not ready
}

// The API server is down. An informer still returns its pods, as old as its last event, and
// follows when the server is back.
// Guard: [FromLister] does not take a broken watch for one without events.
func TestHazard62InformerWhileTheServerIsAway(t *testing.T) {
	n := newNode(t)
	n.web("web")
	source, informer := n.lister(metav1.NamespaceAll)
	version := informer.LastSyncResourceVersion()
	n.pod("last", onHostNetwork)
	n.eventually(func() bool { return informer.LastSyncResourceVersion() != version })
	t.Cleanup(cluster.start)
	cluster.crash()
	crashed := time.Now()
	if a, err := source.Pods(t.Context()); err != nil || a.AsOf.IsZero() || a.AsOf.After(crashed) {
		t.Errorf("as of %v, %v, but the server is down since %v", a.AsOf, err, crashed)
	}
	cluster.start()
	n.remove("web", 0)
	n.want["web"] = gc.Leaked
	n.until(source, func(a podsource.Answer) bool { return a.AsOf.After(crashed) && len(a.Pods) == 2 })
	n.collectWith(source, dryRun)
}
