// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finished reports whether a pod in phase Succeeded or Failed came to its end,
// and when, or zero where nothing says when. A pod whose phase is contradicted by
// what else is reported has not finished: one of its containers is reported as
// running, or its sandbox as up, although all containers have ended (condition
// PodReadyToStartContainers, on by default since Kubernetes 1.29, KEP-3085; hazard
// 57).
//
// The time must not be too early: five minutes later the pod holds nothing any
// more. The phase alone has no time. These tell the end:
//
//   - All containers have terminated, each at a known time.
//   - Kubelet says that the pod has no sandbox with a network any more, and since
//     when. It tells of pods that were evicted, or ran out of time, while a
//     container was waiting with the sandbox up (hazard 13), and of containers that
//     kubelet lost ("ContainerStatusUnknown", without a time).
//   - Else the last change of the status that metadata.managedFields knows of: the
//     pod was in this phase then. It is a time of the API server's clock, so the
//     five minutes have to cover how far the two clocks are apart.
//
// No time is taken that is before another that the pod has to show.
//
// Nothing says when kubelet rejected a pod (OutOfcpu, Evicted and so on): it then
// writes a status with little but a phase, a reason and startTime. That is the
// moment of the rejection for most (hazard 31), but a kubelet that was restarted
// may reject a pod that runs, and keeps its start (hazard 56).
func finished(pod *corev1.Pod) (ended bool, at time.Time) {
	status := &pod.Status
	if status.Phase != corev1.PodSucceeded && status.Phase != corev1.PodFailed {
		return false, time.Time{}
	}
	c, sandbox := lookAt(pod), sandbox(status.Conditions)
	if c.running || sandbox == corev1.ConditionTrue {
		return false, time.Time{}
	}
	seen := latest(c.lastEnd, lastTransition(status.Conditions))
	if status.StartTime != nil {
		seen = latest(seen, status.StartTime.Time)
	}
	if c.all || sandbox == corev1.ConditionFalse {
		return true, seen
	}
	if written := statusWritten(pod.ManagedFields); !written.IsZero() {
		return true, latest(seen, written)
	}
	return true, time.Time{}
}

// containers is what the statuses of a pod's containers say together.
type containers struct {
	running bool
	all     bool      // there are some, and all have terminated at known times
	lastEnd time.Time // the latest known end, zero if there is none
}

func lookAt(pod *corev1.Pod) containers {
	spec, status := &pod.Spec, &pod.Status
	c := containers{all: len(status.ContainerStatuses) > 0 &&
		len(status.ContainerStatuses) >= len(spec.Containers) &&
		len(status.InitContainerStatuses) >= len(spec.InitContainers) &&
		len(status.EphemeralContainerStatuses) >= len(spec.EphemeralContainers)}
	for _, list := range [][]corev1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			c.note(&list[i])
		}
	}
	return c
}

// note takes one more container into account.
func (c *containers) note(s *corev1.ContainerStatus) {
	if s.State.Running != nil {
		c.running = true
	}
	if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
		c.all = false
	}
	for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil {
			c.lastEnd = latest(c.lastEnd, t.FinishedAt.Time)
		}
	}
}

// lastTransition returns the latest change of a condition that kubelet owns. The
// others' times are of other clocks.
func lastTransition(conditions []corev1.PodCondition) (t time.Time) {
	for _, c := range conditions {
		switch c.Type {
		case corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, podReadyToStartContainers:
			t = latest(t, c.LastTransitionTime.Time)
		}
	}
	return t
}

// podReadyToStartContainers is a constant of k8s.io/api since v0.29.
const podReadyToStartContainers corev1.PodConditionType = "PodReadyToStartContainers"

// sandbox returns what kubelet says of the pod's sandbox: True if there is one
// with a network, False if there is none since a known time, or nothing.
func sandbox(conditions []corev1.PodCondition) corev1.ConditionStatus {
	for i := range conditions {
		c := &conditions[i]
		if c.Type == podReadyToStartContainers && (c.Status != corev1.ConditionFalse || !c.LastTransitionTime.IsZero()) {
			return c.Status
		}
	}
	return ""
}

// statusWritten returns when the API server last took a change of the status, or
// zero if the object does not say: before Kubernetes 1.22 an entry does not name
// its subresource. The fields themselves are not looked at, as their type depends
// on how apimachinery is built.
func statusWritten(entries []metav1.ManagedFieldsEntry) (t time.Time) {
	for i := range entries {
		if e := &entries[i]; e.Subresource == "status" && e.Time != nil {
			t = latest(t, e.Time.Time)
		}
	}
	return t
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
