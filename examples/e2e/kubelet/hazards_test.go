// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/pods"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// hourAgo returns the time an hour ago, in whole seconds like times of the API.
func hourAgo() *metav1.Time {
	return &metav1.Time{Time: time.Now().Add(-time.Hour).Truncate(time.Second)}
}

// ended returns the status of a container that ended an hour ago.
func ended() []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: *hourAgo()}},
	}}
}

// When kubelet rejects a pod, it writes a phase and a reason, and keeps the rest of the
// status. The pod may have run until then.
//
// Guard: [decode] removes the managed fields, and [kubepod.Convert] does not use the start as
// the end.
func TestHazard56RejectedWhileItRuns(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	rejected := n.add("rejected", nil) // like kubelet's rejectPod
	n.report(rejected, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: Node didn't have enough resource"})
	// The same after a restart of kubelet, while the pod runs.
	start := hourAgo()
	ran := n.add("ran", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: start}
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: start}}
	})
	n.report(ran, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeAffinity", Message: "Pod was rejected: Predicate NodeAffinity failed"})
	n.ready()
	got := n.list()
	if p := got["rejected"]; !p.Finished || !p.FinishedAt.IsZero() {
		t.Errorf("it may have run before it was rejected (hazard 31): got %+v", p)
	}
	if p := got["ran"]; !p.Finished || !p.FinishedAt.IsZero() || !p.StartedAt.Equal(start.Time) {
		t.Errorf("it runs since its start, and the end of its containers is unknown: got %+v", p)
	}
}

// All containers of a pod have ended, and kubelet has not stopped its sandbox yet.
//
// Guard: [kubepod.Convert] uses the condition rather than the statuses of the containers.
func TestHazard57SandboxStillUp(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	for name, up := range map[string]corev1.ConditionStatus{"up": corev1.ConditionTrue, "gone": corev1.ConditionFalse} {
		job := n.add(name, func(p *corev1.Pod) { p.Status.StartTime = hourAgo() })
		n.report(job, corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: ended(), PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: up}}})
	}
	n.ready()
	got := n.list()
	if p := got["up"]; p.HasFinished() || len(p.IPs) != 1 {
		t.Errorf("its sandbox is up: got %+v", p)
	}
	if p := got["gone"]; !p.HasFinished() {
		t.Errorf("its sandbox is gone: got %+v", p)
	}
}

// An annotation that can't be read is no error, since a tenant may have written it.
//
// Guard: [kubepod.Convert] sets MoreIPs, and the note of [Source.Pods] names the pod.
func TestHazard67GarbageInTheAnnotation(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	n.add("web", nil)
	n.add("tenants", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": "{"}
	})
	n.ready()
	got := n.list()
	if len(got) != 2 || got["web"].MoreIPs || !got["tenants"].MoreIPs {
		t.Errorf("got %+v", got)
	}
}

// A kubelet that restarts gives a static pod a new start, and keeps the start of a pod from
// the API server.
//
// Guard: [kubepod.Convert] sets no start for a static pod.
func TestHazard76StaticPodAfterAKubeletRestart(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	of := func(source string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{kubetypes.ConfigSourceAnnotationKey: source} }
	}
	for name, source := range map[string]string{"file": kubetypes.FileSource, "url": kubetypes.HTTPSource, "api": kubetypes.ApiserverSource} {
		n.report(n.add(name, of(source)), corev1.PodStatus{Phase: corev1.PodPending})
	}
	n.ready()
	got := n.list()
	for _, name := range []string{"file", "url"} {
		if p, ok := got[name]; !ok || !p.StartedAt.IsZero() {
			t.Errorf("%s: its sandbox may be older than kubelet's start: got %+v", name, p)
		}
	}
	if p := got["api"]; p.StartedAt.IsZero() {
		t.Errorf("kubelet reports its start: got %+v", p)
	}
}
