// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	hasSandbox = podReadyToStartContainers
	yes, no    = corev1.ConditionTrue, corev1.ConditionFalse
)

func TestFinished(t *testing.T) {
	failed, evicted := phase(corev1.PodFailed, ""), phase(corev1.PodFailed, "Evicted")
	succeeded := phase(corev1.PodSucceeded, "")
	writtenAt := func(d time.Duration) change { return written("status", stamp(ago(d))) }
	onlyEnded, noSandbox := container(ended(ago(past))), condition(hasSandbox, no, ago(past))
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

		{"evicted without a sandbox, but a container is reported as running", pod(evicted, container(running()), noSandbox), live},
		{"an ephemeral container runs", pod(failed, container(ended(ago(past))), ephemeral(running())), live},
		{"marked as failed by a controller, while the node reported that it runs", pod(evicted, container(running()), writtenAt(past)), live},

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

		{"the sandbox is up", pod(failed, container(lost()), condition(hasSandbox, yes, ago(past)), writtenAt(past)), live},
		{"the sandbox is up, and all containers have ended", pod(succeeded, onlyEnded, condition(hasSandbox, yes, ago(past))), live},
		{"unknown whether the sandbox is up", pod(succeeded, onlyEnded, condition(hasSandbox, corev1.ConditionUnknown, ago(past))), past},
		{"all containers have ended, and later the sandbox", pod(succeeded, onlyEnded, condition(hasSandbox, no, ago(day))), day},
		// As when kubelet could not make another one until the deadline of the pod.
		{"the sandbox is gone, and the pod failed later", pod(failed, container(lost()), noSandbox, writtenAt(recent)), recent},
		{"... in kubelet, where the time of the last change is unknown", pod(failed, container(lost()), noSandbox), unknown},
		{"... after its containers had ended", pod(failed, onlyEnded, noSandbox, writtenAt(recent)), recent},

		{"the status has not changed for a day", pod(failed, container(lost()), writtenAt(day)), day},
		{"the status has just changed", pod(failed, container(lost()), writtenAt(past), writtenAt(recent)), recent},
		{"before 1.22 the subresource is not named", pod(failed, container(lost()), written("", stamp(ago(day)))), unknown},
		{"another subresource than the status", pod(failed, container(lost()), written("resize", stamp(ago(past)))), unknown},
		{"an entry without a time", pod(failed, container(lost()), written("status", nil)), unknown},
		{"the API server's clock is behind: a container ended later", pod(failed, container(ended(ago(recent)), lost()), writtenAt(day)), recent},
		{"... a restarted container", pod(failed, container(endedBefore(ago(day)), lost()), writtenAt(past)), day},
		{"... the pod was started later", pod(failed, container(lost()), writtenAt(7*day)), 3 * day},
		{"the scheduler's clock", pod(failed, container(lost()), condition(corev1.PodScheduled, yes, ago(recent)), writtenAt(past)), past},

		{"rejected: its start may be older than the rejection", pod(phase(corev1.PodFailed, "OutOfcpu")), unknown},
		{"rejected, and the status was written then", pod(phase(corev1.PodFailed, "OutOfcpu"), writtenAt(recent)), recent},
		{"rejected, and scheduled before", pod(evicted, condition(corev1.PodScheduled, yes, ago(4*day))), unknown},
		{"never seen by a kubelet, marked as failed by a controller", pod(evicted, started(nil), writtenAt(day)), day},
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
