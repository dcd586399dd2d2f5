// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var equal = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(0)}

// A change changes a pod that runs without an address.
type change func(*corev1.Pod)

// pod returns default/web with one container, started three days before now.
func pod(changes ...change) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "6ba7b810"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: stamp(ago(3 * day))},
	}
	for _, c := range changes {
		c(p)
	}
	return p
}

const (
	day    = 24 * time.Hour
	recent = time.Minute    // ago: less than the five minutes for which a finished pod holds its addresses
	past   = 48 * time.Hour // ago: more
)

// now is the same time for all rows, in whole seconds like times of the API.
var now = time.Now().Truncate(time.Second)

func ago(d time.Duration) time.Time { return now.Add(-d) }

func stamp(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }

func phase(p corev1.PodPhase, reason string) change {
	return func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = p, reason }
}

func podIPs(list ...string) change {
	return func(pod *corev1.Pod) {
		for _, ip := range list {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		if len(list) > 0 {
			pod.Status.PodIP = list[0]
		}
	}
}

func annotated(key, text string) change {
	return func(pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, text) }
}

func hostNetwork(pod *corev1.Pod) { pod.Spec.HostNetwork = true }

// agent returns a pod that runs. A list with finished pods alone counts as empty (R9,
// hazard 43).
func agent() *corev1.Pod {
	p := pod(hostNetwork)
	p.Name, p.UID = "agent", "9e107d9d"
	return p
}

func started(t *metav1.Time) change { return func(pod *corev1.Pod) { pod.Status.StartTime = t } }

func container(states ...corev1.ContainerStatus) change {
	return func(pod *corev1.Pod) { pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, states...) }
}

func initContainer(states ...corev1.ContainerStatus) change {
	return func(pod *corev1.Pod) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, make([]corev1.Container, len(states))...)
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, states...)
	}
}

func ephemeral(states ...corev1.ContainerStatus) change {
	return func(pod *corev1.Pod) {
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, make([]corev1.EphemeralContainer, len(states))...)
		pod.Status.EphemeralContainerStatuses = append(pod.Status.EphemeralContainerStatuses, states...)
	}
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, since time.Time) change {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: *stamp(since)})
	}
}

// written adds the API server's record of an update to the managed fields.
func written(subresource string, at *metav1.Time) change {
	return func(pod *corev1.Pod) {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate,
			Subresource: subresource, Time: at,
		})
	}
}

func running() corev1.ContainerStatus {
	return corev1.ContainerStatus{
		ContainerID: "containerd://5c7b9a1e",
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *stamp(ago(past))}},
	}
}

func ended(at time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		ContainerID: "containerd://5c7b9a1e",
		State:       corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: *stamp(at)}},
	}
}

// lost returns the status of a container that kubelet did not find when the pod ended.
func lost() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137},
	}}
}

func waiting(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

// endedBefore returns the status of a container that waits for its restart.
func endedBefore(at time.Time) corev1.ContainerStatus {
	s := waiting("CrashLoopBackOff")
	s.LastTerminationState = ended(at).State
	return s
}

// verdict runs a pass with the converted pods over a network in which 10.0.0.2 has been
// reserved for the given time, and returns the verdict on it.
func verdict(t *testing.T, reserved time.Duration, pods ...*corev1.Pod) gc.Verdict {
	t.Helper()
	dir := gctest.NewDir(t)
	dir.Reserve("podnet", "10.0.0.2", gctest.ContainerID("unknown"), reserved)
	var source podsource.Static
	for _, pod := range pods {
		source = append(source, Convert(pod))
	}
	reconciler, err := gc.New(dir.Store, []string{"podnet"}, source, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := reconciler.Reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report.Reservations[0].Verdict
}
