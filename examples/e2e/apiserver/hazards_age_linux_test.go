// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// The hazards of an incomplete or old list.

// A filtered informer passes every check, and the pods that it leaves out lose their
// addresses. An informer of NewInformer can't be filtered.
//
// Guard: [NewInformer] lists and watches all namespaces, and [Source.selector] selects by node
// only.
func TestHazard54FilteredInformer(t *testing.T) {
	n, other := newNode(t), newNode(t)
	early, late := n.reserve("early", old), n.reserve("late", old)
	in := func(namespace, name string, changes ...change) {
		t.Helper()
		mine := n.namespace
		n.namespace = namespace
		defer func() { n.namespace = mine }()
		n.pod(name, changes...)
	}
	in(n.namespace, "agent", onHostNetwork)
	in(other.namespace, "early", with(early...))
	watched, _ := watching(n, n.client.CoreV1())
	if a := n.until(watched, "its first list", func(podsource.Answer) bool { return true }); len(a.Pods) != 2 {
		t.Errorf("listed %d pods of two namespaces, want 2", len(a.Pods))
	}
	in(other.namespace, "late", with(late...))
	n.until(watched, "the pod that was added later", func(a podsource.Answer) bool { return len(a.Pods) == 3 })
	report, err := n.pass(watched, gc.Options{DryRun: true})
	n.must(err)
	if report.Counts()[gc.InUse] != 2 {
		t.Errorf("got %v, want both addresses in use", report.Counts())
	}

	// This list looks like that of a node with fewer pods, unless the filter leaves out the
	// required pod, too.
	filtered, _ := lister(n, informers.WithNamespace(n.namespace))
	n.inStep(filtered)
	report, err = n.pass(filtered, gc.Options{DryRun: true})
	n.must(err)
	if report.Counts()[gc.Leaked] != 2 {
		t.Errorf("the test shows nothing, as no address counts as leaked: %v", report.Counts())
	}
	err = n.refused(podsource.Require(filtered, types.NamespacedName{Namespace: other.namespace, Name: "early"}))
	if !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("got %v, want %v", err, podsource.ErrIncomplete)
	}
}

// Kubelet's certificate has expired. It runs pods that the control plane does not know, and
// the node controller sets Ready=Unknown.
//
// Guard: [checkReporting] returns an error for a Node that is Ready=Unknown.
func TestHazard55NodeUnknown(t *testing.T) {
	n := newNode(t)
	n.reserve("started since", old)
	n.pod("web", with(n.reserve("web", old)...))
	source, _ := lister(n, informers.WithNamespace(metav1.NamespaceAll))
	n.inStep(source)
	watched, _ := watching(n, n.client.CoreV1())
	n.setStatus(func(s *corev1.NodeStatus) {
		// As kube-controller-manager writes it (pkg/controller/nodelifecycle).
		s.Conditions[0].Status, s.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		s.Conditions[0].Message, s.Conditions[0].LastTransitionTime = "Kubelet stopped posting node status.", metav1.Now()
	})
	n.until(podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		_, err := source.Pods(ctx)
		return podsource.Answer{Err: err}, nil
	}), "the informer's Node to be unknown", func(a podsource.Answer) bool { return a.Err != nil })
	for way, source := range map[string]podsource.Source{"New": n.source(), "NewInformer": watched, "FromLister": source} {
		err := n.refused(source)
		if !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "Ready=Unknown") || !strings.Contains(err.Error(), "stopped posting") {
			t.Errorf("%s: got %v, want %v that says why", way, err, podsource.ErrIncomplete)
		}
	}
	n.setStatus(func(s *corev1.NodeStatus) { s.Conditions[0].Status = corev1.ConditionFalse })
	if _, err := n.pass(n.source(), gc.Options{DryRun: true}); err != nil {
		t.Errorf("kubelet reports that the node is not ready: %v", err)
	}
}

// The API server is down. The informer still returns its pods, which are as old as its last
// event.
//
// Guard: [InStep] does not take a broken watch for one without events.
func TestHazard62InformerWhileTheServerIsAway(t *testing.T) {
	n := newNode(t)
	leaked := n.reserve("leaked", old)
	source, shared := lister(n, informers.WithNamespace(metav1.NamespaceAll))
	n.inStep(source)
	version := shared.LastSyncResourceVersion()
	n.pod("last", onHostNetwork)
	n.must(wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return shared.LastSyncResourceVersion() != version, nil
	}))
	restartAfter(t)
	cluster.crash()
	crashed := time.Now()
	for range 3 {
		a, err := source.Pods(t.Context())
		n.must(err)
		if a.AsOf.IsZero() || a.AsOf.After(crashed) {
			t.Errorf("as of %v, but the server is down since %v", a.AsOf, crashed)
		}
	}
	restart(t)
	n.inStep(source)
	a := n.until(source, "a list since the server is back", func(a podsource.Answer) bool { return a.AsOf.After(crashed) })
	if len(a.Pods) != 3 {
		t.Errorf("got %d pods", len(a.Pods))
	}
	report, err := n.pass(source, gc.Options{})
	n.must(err)
	n.check(report, map[string]gc.Verdict{only(leaked): gc.Released})
}

// An informer whose account may list but not watch keeps its first list, and its note says
// why.
//
// Guard: [Informer.relist] sets the time of a list to that of its request, and
// [Informer.apply] to that of an event.
func TestHazard62NoRightToWatch(t *testing.T) {
	grant(t, "minimal", documentedRules(t)...)
	n := newNode(t)
	n.pod("agent", onHostNetwork)
	source, _ := watching(n, clientset(t, "minimal").CoreV1())
	n.until(source, "a watch that is refused", func(a podsource.Answer) bool {
		return strings.Contains(a.Note, `lacks the verb "watch" on resource "pods"`)
	})
	before := time.Now()
	n.pod("web")
	a, err := source.Pods(t.Context())
	n.must(err)
	if len(a.Pods) != 1 || !a.AsOf.Before(before) {
		t.Errorf("got %d pods as of %v, want one, and as of before %v", len(a.Pods), a.AsOf, before)
	}
}

// An answer of the API server's watch cache is not older than the Node. Its time is that of
// kubelet's last report of the Node.
//
// Guard: [New] requests a list that is not older than the Node object.
func TestHazard62WatchCache(t *testing.T) {
	n := newNode(t)
	n.pod("web")
	beat := metav1.NewTime(time.Now().Add(-3 * time.Minute)).Rfc3339Copy()
	n.setStatus(func(s *corev1.NodeStatus) { s.Conditions[0].LastHeartbeatTime = beat })
	m := newMeter(t, "")
	var version string
	m.before = func(r *http.Request) {
		if q := r.URL.Query(); strings.HasSuffix(r.URL.Path, "/pods") && q.Get("resourceVersionMatch") == "NotOlderThan" {
			version = q.Get("resourceVersion")
		}
	}
	a, err := newSource(m, n.name, kube.Options{WatchCache: true}).Pods(t.Context())
	n.must(err)
	node, err := n.client.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
	n.must(err)
	// The pod was created before the Node was updated, so the list has it.
	if len(a.Pods) != 1 || !a.AsOf.Equal(beat.Time) || version != node.ResourceVersion {
		t.Errorf("got %d pods as of %v and of version %s, want one, as of %v and of %s", len(a.Pods), a.AsOf, version, beat, node.ResourceVersion)
	}
}

// An informer applies changes, also after a restart of the API server.
func TestInformerFollows(t *testing.T) {
	n := newNode(t)
	source, stop := watching(n, n.client.CoreV1())
	names := func(want ...string) {
		t.Helper()
		n.until(source, strings.Join(want, " "), func(a podsource.Answer) bool {
			var got []string
			for _, p := range a.Pods {
				if p.Name == "web" && len(p.IPs) == 0 {
					return false
				}
				got = append(got, p.Name)
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	n.pod("agent", onHostNetwork)
	n.pod("web", with(n.reserve("web", old)...))
	names("agent", "web")
	n.remove("web", 0)
	names("agent")
	restartAfter(t)
	cluster.crash()
	if err := n.refused(source); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("the server is down: %v", err)
	}
	restart(t)
	n.pod("web", with(n.reserve("other", old)...))
	n.pod("elsewhere", boundTo("another-node"))
	names("agent", "web")
	stop()
}
