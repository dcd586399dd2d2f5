// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"net"
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

// newNode serves the Pods API as kubelet does, before any of kubelet's sources of pods is ready.
func newNode(t *testing.T, limit rate.Limit, burst int) *node {
	t.Helper()
	n := &node{pods: kubeletpod.NewBasicPodManager()}
	n.sources = config.NewSourcesReady(func(seen sets.Set[string]) bool {
		return seen.HasAll(kubetypes.FileSource, kubetypes.ApiserverSource)
	})
	n.status = status.NewManager(nil, n.pods, quiet{}, quiet{})
	g := grpc.NewServer(grpc.ChainUnaryInterceptor(
		apisgrpc.LimiterUnaryServerInterceptor(rate.NewLimiter(limit, burst)), pods.MetricsUnaryServerInterceptor))
	podsv1alpha1.RegisterPodsServer(g, pods.NewPodsServer(pods.NewBroadcaster(t.Context()), n.pods, n.status, n.sources))
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }() // an error of the server is one of the source
	t.Cleanup(g.Stop)
	if n.source, err = kubelet.New(socket); err != nil {
		t.Fatal(err)
	}
	return n
}

// add adds a pod as the API server delivers it, and then the status that kubelet reports, if any.
func (n *node) add(name string, change func(*corev1.Pod), report *corev1.PodStatus) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "main", Image: "registry.example/web:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	if change != nil {
		change(p)
	}
	n.pods.AddPod(p)
	if report != nil {
		n.status.SetPodStatus(klog.Background(), p, *report)
	}
}

var hourAgo = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))

// ran is a pod of the API server that runs since an hour ago.
func ran(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &hourAgo}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: &hourAgo}}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

// succeeded is a status of a pod whose container ended an hour ago, and whose sandbox may be up.
func succeeded(sandbox corev1.ConditionStatus) *corev1.PodStatus {
	return &corev1.PodStatus{
		Phase: corev1.PodSucceeded, Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: sandbox}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: hourAgo}}}},
	}
}

// statuses are pods with the status that kubelet reports. The name of a hazard has its number. The
// test fails without the guard.
var statuses = []struct {
	name, reason, guard string
	pod                 func(*corev1.Pod)
	report              *corev1.PodStatus
	want                string
}{
	{"address", "kubelet's status is newer than the object's", "", nil,
		&corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.3"}}}, "start 0s ago, IPs [10.0.0.3]"},
	{"not reported", "kubelet has not reported its status, so its start is unknown (R4)", "", nil, nil, "start unknown, IPs []"},
	{"104 running without an address", "as when its CNI plugin reported none", "", nil,
		&corev1.PodStatus{Phase: corev1.PodRunning}, "start 0s ago, IPs []"},
	{"56 rejected while it runs", "after a restart of kubelet, whose status has no containers",
		"decode removes the managed fields, which have the time of an older status", ran,
		&corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeAffinity"}, "start 1h0m0s ago, IPs [], end unknown"},
	{"57 sandbox still up", "all containers have ended, and kubelet has not stopped the sandbox",
		"kubepod.Convert uses the condition rather than the containers", ran, succeeded(corev1.ConditionTrue), "start 1h0m0s ago, IPs []"},
	{"57 sandbox gone", "all containers have ended, and kubelet has stopped the sandbox",
		"kubepod.Convert sets the end", ran, succeeded(corev1.ConditionFalse), "start 1h0m0s ago, IPs [], end 0s ago"},
	{"67 address in another form", "it spoils its pod, and not the list", "kubepod.Convert sets MoreIPs", nil,
		&corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "010.0.0.3"}, {IP: "fd00::3"}}},
		"start 0s ago, IPs [fd00::3], more"},
	{"76 static pod of a file", "a restarted kubelet gives it a later start than its sandbox",
		"kubepod.Convert sets no start for a static pod",
		annotated(kubetypes.ConfigSourceAnnotationKey, kubetypes.FileSource), &corev1.PodStatus{}, "start unknown, IPs []"},
	{"76 pod of the API server", "a restarted kubelet keeps its start", "",
		annotated(kubetypes.ConfigSourceAnnotationKey, kubetypes.ApiserverSource), &corev1.PodStatus{}, "start 0s ago, IPs []"},
}

// describe returns what a pod claims, and for how long.
func describe(p podsource.Pod) string {
	when := func(t time.Time) string {
		if t.IsZero() {
			return "unknown"
		}
		return time.Since(t).Round(time.Hour).String() + " ago"
	}
	text := fmt.Sprintf("start %s, IPs %v", when(p.StartedAt), p.IPs)
	if p.HasFinished() {
		text += ", end " + when(p.FinishedAt)
	}
	if p.MoreIPs {
		text += ", more"
	}
	return text
}

// The source returns the statuses of kubelet's status manager.
func TestStatuses(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	for _, row := range statuses {
		n.add(row.name, row.pod, row.report)
	}
	n.add("mirror", annotated(kubetypes.ConfigMirrorAnnotationKey, "hash"), nil) // of a static pod, not in the list
	n.sources.AddSource(kubetypes.FileSource)
	n.sources.AddSource(kubetypes.ApiserverSource)
	answer, err := n.source.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]podsource.Pod)
	for _, p := range answer.Pods {
		got[p.Name] = p
	}
	for _, row := range statuses {
		t.Run(row.name, func(t *testing.T) {
			if p, ok := got[row.name]; !ok || describe(p) != row.want {
				t.Errorf("%s: got %q, want %q; guard: %s", row.reason, describe(p), row.want, row.guard)
			}
		})
	}
	if len(answer.Pods) != len(statuses) {
		t.Errorf("got %d pods, want %d: %v", len(answer.Pods), len(statuses), got)
	}
}

// The list is an error until kubelet knows the pods of all its sources, and when it limits the
// rate of calls.
func TestNotReadyThenLimited(t *testing.T) {
	n := newNode(t, 0, 3)
	n.add("web", nil, nil)
	refused := func(want string) {
		t.Helper()
		if _, err := n.source.Pods(t.Context()); !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %v that says %q", err, podsource.ErrIncomplete, want)
		}
	}
	refused("initializing")
	n.sources.AddSource(kubetypes.FileSource)
	refused("initializing")
	n.sources.AddSource(kubetypes.ApiserverSource)
	if got, err := n.source.Pods(t.Context()); len(got.Pods) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	refused("")
}
