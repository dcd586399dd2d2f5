// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	sandboxUp = podReadyToStartContainers
	yes, no   = corev1.ConditionTrue, corev1.ConditionFalse
)

func TestFinished(t *testing.T) {
	failed, evicted := phase(corev1.PodFailed, ""), phase(corev1.PodFailed, "Evicted")
	succeeded := phase(corev1.PodSucceeded, "")
	const live, unknown = 0, -1 // it has not finished; it has, at an unknown time
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   time.Duration // ago; or live or unknown
	}{
		{"a running pod whose container ended is restarted", pod(container(ended(ago(past)))), live},
		{"pending", pod(phase(corev1.PodPending, ""), container(ended(ago(past)))), live},
		{"no phase", pod(phase("", ""), container(ended(ago(past)))), live},

		{"one container", pod(succeeded, container(ended(ago(past)))), past},
		{"the last of several", pod(failed, container(ended(ago(past)), ended(ago(recent)), ended(ago(day)))), recent},
		{"a sidecar, which is an init container, ends last", pod(succeeded, initContainer(ended(ago(recent))), container(ended(ago(past)))), recent},
		{"an ephemeral container ends last", pod(failed, container(ended(ago(past))), ephemeral(ended(ago(recent)))), recent},
		{"a container that had been restarted", pod(failed, container(func() corev1.ContainerStatus {
			s := ended(ago(day))
			s.LastTerminationState = ended(ago(past)).State
			return s
		}())), day},
		{"it was ready after that, by a clock that was set since", pod(succeeded, container(ended(ago(past))), condition(corev1.PodReady, no, ago(day))), day},
		{"it was started after that, by a clock that was set since", pod(succeeded, started(stamp(ago(day))), container(ended(ago(past)))), day},

		{"evicted without a sandbox, but a container is reported as running", pod(evicted, container(ended(ago(past)), running()), condition(sandboxUp, no, ago(past))), live},
		{"an ephemeral container runs", pod(failed, container(ended(ago(past))), ephemeral(running())), live},
		{"marked as failed by a controller, while the node last reported that it runs", pod(evicted, container(running()), written("status", stamp(ago(past)))), live},

		{"evicted while it waited for a restart", pod(evicted, container(endedBefore(ago(past)))), unknown},
		{"evicted while an image was pulled", pod(evicted, container(waiting("ImagePullBackOff")), condition(corev1.PodReady, no, ago(past))), unknown},
		{"exceeded its deadline while an image was pulled, after an init container",
			pod(phase(corev1.PodFailed, "DeadlineExceeded"), initContainer(ended(ago(past))), container(waiting("PodInitializing"))), unknown},
		{"kubelet lost one container of two", pod(failed, container(ended(ago(past)), lost())), unknown},
		{"the status of one container is missing", pod(failed, container(ended(ago(past))), func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second"})
		}), unknown},
		{"the status of an init container is missing", pod(failed, container(ended(ago(past))), func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "sidecar"})
		}), unknown},
		{"the status of an ephemeral container is missing", pod(failed, container(ended(ago(past))), func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
		}), unknown},

		{"evicted while an image was pulled, and the sandbox is gone", pod(evicted, container(waiting("ImagePullBackOff")), condition(sandboxUp, no, ago(day))), day},
		{"the sandbox is gone for a minute", pod(evicted, container(waiting("ImagePullBackOff")), condition(sandboxUp, no, ago(recent))), recent},
		{"the sandbox is gone, and a container ended after that", pod(failed, container(ended(ago(day)), lost()), condition(sandboxUp, no, ago(past))), day},
		{"the sandbox is gone, and a restarted container ended after that", pod(failed, container(endedBefore(ago(day)), lost()), condition(sandboxUp, no, ago(past))), day},
		{"the sandbox is gone, and the pod was ready after that", pod(failed, container(lost()), condition(sandboxUp, no, ago(past)), condition(corev1.PodReady, no, ago(day))), day},
		{"the sandbox is gone, and the pod was started after that", pod(failed, container(lost()), condition(sandboxUp, no, ago(7*day))), 3 * day},
		{"the sandbox is gone since an unknown time", pod(failed, container(lost()), condition(sandboxUp, no, time.Time{})), unknown},
		{"a time of the scheduler's clock does not count", pod(failed, container(lost()), condition(corev1.PodScheduled, yes, ago(recent)), condition(sandboxUp, no, ago(past))), past},
		{"the sandbox is up", pod(failed, container(lost()), condition(sandboxUp, yes, ago(past))), live},
		{"the sandbox is up, and all containers have ended", pod(succeeded, container(ended(ago(past))), condition(sandboxUp, yes, ago(past))), live},
		{"unknown whether the sandbox is up", pod(succeeded, container(ended(ago(past))), condition(sandboxUp, corev1.ConditionUnknown, ago(past))), past},
		{"the sandbox is up, and the status was written long ago", pod(failed, container(lost()), condition(sandboxUp, yes, ago(past)), written("status", stamp(ago(past)))), live},

		{"older kubelets: the status has not changed for a day", pod(failed, container(lost()), written("status", stamp(ago(day)))), day},
		{"the status has just changed", pod(failed, container(lost()), written("status", stamp(ago(past))), written("status", stamp(ago(recent)))), recent},
		{"before 1.22 the subresource is not named", pod(failed, container(lost()), written("", stamp(ago(day)))), unknown},
		{"another subresource than the status", pod(failed, container(lost()), written("resize", stamp(ago(past)))), unknown},
		{"an entry without a time", pod(failed, container(lost()), written("status", nil)), unknown},
		{"the API server's clock is behind", pod(failed, container(ended(ago(recent)), lost()), written("status", stamp(ago(day)))), recent},

		{"rejected: its start may be older than the rejection", pod(phase(corev1.PodFailed, "OutOfcpu")), unknown},
		{"rejected, and the status was written then", pod(phase(corev1.PodFailed, "OutOfcpu"), written("status", stamp(ago(recent)))), recent},
		{"rejected, and scheduled before", pod(evicted, condition(corev1.PodScheduled, yes, ago(4*day))), unknown},
		{"never seen by a kubelet, marked as failed by a controller", pod(evicted, started(nil), written("status", stamp(ago(day)))), day},
		{"the phase alone", pod(succeeded, started(nil)), unknown},
	} {
		ended, at := finished(row.pod)
		var want time.Time
		if row.want > 0 {
			want = ago(row.want)
		}
		if ended != (row.want != live) || !at.Equal(want) {
			t.Errorf("%s: got %t, %v, want %t, %v", row.reason, ended, at, row.want != live, want)
		}
	}
}
