// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/pods"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// hourAgo is a time as the API has it.
func hourAgo() *metav1.Time {
	return &metav1.Time{Time: time.Now().Add(-time.Hour).Truncate(time.Second)}
}

// ended are the statuses of a container that ended an hour ago.
func ended() []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: *hourAgo()}},
	}}
}

// Kubelet writes of a pod that it rejects a phase and a reason, and keeps the rest:
// it may have run until then.
//
// Guard: [decode] takes out the managed fields, and [kubepod.Convert] does not take
// the start for the end.
func TestHazard56RejectedWhileItRuns(t *testing.T) {
	n := newNode(t, pods.DefaultQPS, pods.DefaultBurstTokens)
	rejected := n.add("rejected", nil) // as rejectPod writes it
	n.report(rejected, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: Node didn't have enough resource"})
	// The same of a kubelet that was restarted, and finds that the pod runs.
	start := hourAgo()
	ran := n.add("ran", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: start}
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: start}}
	})
	n.report(ran, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeAffinity", Message: "Pod was rejected: Predicate NodeAffinity failed"})
	n.ready()
	got := n.list()
	if p := got["rejected"]; !p.Finished || !p.FinishedAt.IsZero() {
		t.Errorf("whether it ran before it was rejected is not said (hazard 31): got %+v", p)
	}
	if p := got["ran"]; !p.Finished || !p.FinishedAt.IsZero() || !p.StartedAt.Equal(start.Time) {
		t.Errorf("it ran since its start, and nothing says when its containers end: got %+v", p)
	}
}

// Kubelet has not stopped the sandbox of a pod yet, all containers of which have
// ended.
//
// Guard: [kubepod.Convert] takes the word of the condition for the containers'.
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

// What a tenant wrote into an annotation makes kubelet's whole list no error.
//
// Guard: [kubepod.Convert] marks the pod, and [Source.Pods] names it.
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

// A kubelet that was restarted gives a static pod a new start, and keeps that of one
// from the API server.
//
// Guard: [kubepod.Convert] gives no start for a static pod.
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
			t.Errorf("%s: kubelet started it anew, and its sandbox may be older: got %+v", name, p)
		}
	}
	if p := got["api"]; p.StartedAt.IsZero() {
		t.Errorf("kubelet says when it was started: got %+v", p)
	}
}
