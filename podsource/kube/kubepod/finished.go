// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finished reports whether a pod has finished, and the time of its end, or zero if that is
// unknown. A pod has finished in phase Succeeded or Failed, unless one of its containers is
// reported as running, or its sandbox as up although all containers have ended (condition
// PodReadyToStartContainers, on by default since Kubernetes 1.29, KEP-3085; hazard 57).
//
// The time must not be too early, since the pod holds nothing five minutes later. The
// phase has no time. The end is known if
//
//   - all containers have terminated, each at a known time, or
//   - metadata.managedFields has the time of the last change of the status: the pod was in
//     this phase then. This time is by the clock of the API server, so the five minutes must
//     cover the difference between the two clocks.
//
// It is the latest of these times, of the start of the pod, of the end of a container and of
// the changes of a condition that kubelet sets. Such a change alone does not date the end: the
// sandbox of a pod that exceeded its deadline may have been down for days, while kubelet was
// about to make another one (hazard 13).
//
// The time at which kubelet rejected a pod (OutOfcpu, Evicted and so on) is unknown. It then
// writes a status with little but a phase, a reason and startTime. Mostly startTime is the
// time of the rejection (hazard 31), but a kubelet that was restarted may reject a pod that
// runs, and keeps its start (hazard 56).
func finished(pod *corev1.Pod) (ended bool, at time.Time) {
	status := &pod.Status
	if status.Phase != corev1.PodSucceeded && status.Phase != corev1.PodFailed {
		return false, time.Time{}
	}
	c, written := summarize(pod), statusWritten(pod.ManagedFields)
	switch {
	case c.running || sandboxUp(status.Conditions):
		return false, time.Time{}
	case !c.all && written.IsZero():
		return true, time.Time{}
	}
	at = latest(latest(written, c.lastEnd), lastTransition(status.Conditions))
	if status.StartTime != nil {
		at = latest(at, status.StartTime.Time)
	}
	return true, at
}

// containers summarizes the statuses of a pod's containers.
type containers struct {
	running bool
	all     bool      // there is at least one, and all have terminated at known times
	lastEnd time.Time // the latest known end, zero if there is none
}

func summarize(pod *corev1.Pod) containers {
	spec, status := &pod.Spec, &pod.Status
	c := containers{all: len(status.ContainerStatuses) > 0 &&
		len(status.ContainerStatuses) >= len(spec.Containers) &&
		len(status.InitContainerStatuses) >= len(spec.InitContainers) &&
		len(status.EphemeralContainerStatuses) >= len(spec.EphemeralContainers)}
	for _, list := range [][]corev1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			c.add(&list[i])
		}
	}
	return c
}

// add adds one container.
func (c *containers) add(s *corev1.ContainerStatus) {
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

// lastTransition returns the time of the latest change of a condition that kubelet sets.
// Other conditions have times of other clocks.
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

// sandboxUp reports whether kubelet reports that the pod has a sandbox with a network.
func sandboxUp(conditions []corev1.PodCondition) bool {
	return slices.ContainsFunc(conditions, func(c corev1.PodCondition) bool {
		return c.Type == podReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
}

// statusWritten returns the time of the last change of the status in the managed fields, or
// zero. Before Kubernetes 1.22 the entries do not name their subresource. The fields of an
// entry are not read, as their type depends on the build of apimachinery.
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
