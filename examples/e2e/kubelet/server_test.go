// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/pods"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubeletpod "k8s.io/kubernetes/pkg/kubelet/pod"
	"k8s.io/kubernetes/pkg/kubelet/status"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// A node has the parts of kubelet that serve its pods.
type node struct {
	t       *testing.T
	sources config.SourcesReady
	pods    kubeletpod.Manager
	status  status.Manager
	source  *kubelet.Source
}

// quiet implements the interfaces that the status manager calls.
type quiet struct{}

func (quiet) PodCouldHaveRunningContainers(*corev1.Pod) bool { return true }
func (quiet) RecordStatusUpdated(klog.Logger, *corev1.Pod)   {}
func (quiet) DeletePodStartupState(types.UID)                {}

// newNode serves the Pods API as kubelet does, before any of kubelet's sources of pods is
// ready.
func newNode(t *testing.T, limit rate.Limit, burst int) *node {
	t.Helper()
	n := &node{t: t, pods: kubeletpod.NewBasicPodManager()}
	n.sources = config.NewSourcesReady(func(seen sets.Set[string]) bool {
		return seen.HasAll(kubetypes.FileSource, kubetypes.ApiserverSource)
	})
	n.status = status.NewManager(nil, n.pods, quiet{}, quiet{})
	server := pods.NewPodsServer(pods.NewBroadcaster(t.Context()), n.pods, n.status, n.sources)
	g := grpc.NewServer(grpc.ChainUnaryInterceptor(
		apisgrpc.LimiterUnaryServerInterceptor(rate.NewLimiter(limit, burst)), pods.MetricsUnaryServerInterceptor))
	podsv1alpha1.RegisterPodsServer(g, server)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if n.source, err = kubelet.New(socket, kubelet.Options{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) ready() {
	n.sources.AddSource(kubetypes.FileSource)
	n.sources.AddSource(kubetypes.ApiserverSource)
}

// add adds a pod, as the API server delivers it.
func (n *node) add(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "main", Image: "registry.example/web:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	if change != nil {
		change(p)
	}
	n.pods.AddPod(p)
	return p
}

// report sets a pod's status, as kubelet does.
func (n *node) report(p *corev1.Pod, s corev1.PodStatus) {
	n.t.Helper()
	n.status.SetPodStatus(klog.FromContext(n.t.Context()), p, s)
}

// list calls the source, and returns the pods by name.
func (n *node) list() map[string]podsource.Pod {
	n.t.Helper()
	answer, err := n.source.Pods(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	byName := make(map[string]podsource.Pod)
	for _, p := range answer.Pods {
		byName[p.Name] = p
	}
	return byName
}

func TestNotReadyThenReady(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	n.add("web", func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.2"}} })
	for _, source := range []string{"", kubetypes.FileSource} {
		if source != "" {
			n.sources.AddSource(source)
		}
		got, err := n.source.Pods(t.Context())
		if got.Pods != nil || !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "initializing") {
			t.Errorf("after source %q: got %v, %v, want %v", source, got, err, podsource.ErrIncomplete)
		}
	}
	n.sources.AddSource(kubetypes.ApiserverSource)
	web := n.list()["web"]
	if len(web.IPs) != 1 || web.IPs[0] != netip.MustParseAddr("10.0.0.2") {
		t.Errorf("got %+v", web)
	}
}

// TestStatuses: the source returns the statuses of kubelet's status manager.
func TestStatuses(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	hourAgo := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	fresh := n.add("fresh", nil)
	n.report(fresh, corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.3"}}})
	n.add("not-reported", nil)
	static := n.add("static", func(p *corev1.Pod) {
		p.Annotations = map[string]string{kubetypes.ConfigSourceAnnotationKey: kubetypes.FileSource}
	})
	n.add("mirror", func(p *corev1.Pod) {
		p.Name = "static"
		p.Annotations = map[string]string{
			kubetypes.ConfigSourceAnnotationKey: kubetypes.ApiserverSource,
			kubetypes.ConfigMirrorAnnotationKey: "hash-of-static",
		}
	})
	done := n.add("done", func(p *corev1.Pod) { p.Status.StartTime = &hourAgo })
	n.report(done, corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: hourAgo}},
	}}})
	// The managed fields have the time of an old status, and kubelet has a new one.
	evicted := n.add("evicted", func(p *corev1.Pod) {
		p.Status.StartTime = &hourAgo
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: &hourAgo}}
	})
	n.report(evicted, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
	}}})
	n.ready()

	got := n.list()
	if p := got["fresh"]; len(p.IPs) != 1 || p.StartedAt.IsZero() || p.HasFinished() {
		t.Errorf("kubelet's status is newer than the object's: got %+v", p)
	}
	if p, ok := got["not-reported"]; !ok || !p.StartedAt.IsZero() {
		t.Errorf("kubelet has not reported its status yet, so its start is unknown (R4): got %+v", p)
	}
	if p := got["static"]; p.UID != static.UID {
		t.Errorf("a static pod is in the list once, as kubelet's pod: got %+v", p)
	}
	if p := got["done"]; !p.Finished || !p.FinishedAt.Equal(hourAgo.Time) || !p.StartedAt.Equal(hourAgo.Time) {
		t.Errorf("got %+v, want its end at %v", p, hourAgo)
	}
	if p := got["evicted"]; !p.Finished || !p.FinishedAt.IsZero() {
		t.Errorf("the managed fields are about another status, so its end is unknown: got %+v", p)
	}
	if len(got) != 5 {
		t.Errorf("got %d pods, want 5: %v", len(got), got)
	}
}

func TestThousandPods(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	for i := range 1000 {
		n.add(fmt.Sprintf("pod-%d", i), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"example.com/config": strings.Repeat("x", 30_000)}
			p.Status.PodIP = fmt.Sprintf("10.0.%d.%d", i/250, 2+i%250)
		})
	}
	n.ready()
	if got := n.list(); len(got) != 1000 {
		t.Errorf("got %d pods", len(got))
	}
}

// TestRateLimit: a later call may succeed after kubelet has limited the rate of calls.
func TestRateLimit(t *testing.T) {
	n := newNode(t, 0, 1)
	n.add("web", nil)
	n.ready()
	n.list()
	if _, err := n.source.Pods(t.Context()); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("got %v, want %v", err, podsource.ErrIncomplete)
	}
	if _, err := n.source.Pods(canceled(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
