// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	corev1 "k8s.io/api/core/v1"
)

const (
	sandboxUp = corev1.PodReadyToStartContainers
	yes, no   = corev1.ConditionTrue, corev1.ConditionFalse
)

func TestFinishedAt(t *testing.T) {
	failed, evicted := phase(corev1.PodFailed, ""), phase(corev1.PodFailed, "Evicted")
	succeeded := phase(corev1.PodSucceeded, "")
	const ofStatus, ofMeta = `{"f:status":{"f:phase":{}}}`, `{"f:metadata":{"f:labels":{}}}`
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   time.Duration // ago; 0 is unknown
	}{
		{"a running pod whose container ended is restarted", pod(container(ended(ago(past)))), 0},
		{"pending", pod(phase(corev1.PodPending, ""), container(ended(ago(past)))), 0},
		{"no phase", pod(phase("", ""), container(ended(ago(past)))), 0},

		{"one container", pod(succeeded, container(ended(ago(past)))), past},
		{"the last of several", pod(failed, container(ended(ago(past)), ended(ago(recent)), ended(ago(day)))), recent},
		{"a sidecar, which is an init container, ends last", pod(succeeded, initContainer(ended(ago(recent))), container(ended(ago(past)))), recent},
		{"an ephemeral container ends last", pod(failed, container(ended(ago(past))), ephemeral(ended(ago(recent)))), recent},
		{"what it did before it ended", pod(failed, container(func() corev1.ContainerStatus {
			s := ended(ago(day))
			s.LastTerminationState = ended(ago(past)).State
			return s
		}())), day},
		{"conditions are no part of it", pod(succeeded, container(ended(ago(past))), condition(corev1.PodReady, no, ago(day))), past},

		{"evicted, says kubelet, and a container runs still", pod(evicted, container(ended(ago(past)), running()), condition(sandboxUp, no, ago(past))), 0},
		{"an ephemeral container runs still", pod(failed, container(ended(ago(past))), ephemeral(running())), 0},
		{"marked from afar: what the node reported last is that it runs", pod(evicted, container(running()), written("status", ofStatus, stamp(ago(past)))), 0},

		{"evicted while it waited to be started again: the sandbox was up", pod(evicted, container(endedBefore(ago(past)))), 0},
		{"evicted while an image was pulled", pod(evicted, container(waiting("ImagePullBackOff")), condition(corev1.PodReady, no, ago(past))), 0},
		{"out of time while an image was pulled, after an init container",
			pod(phase(corev1.PodFailed, "DeadlineExceeded"), initContainer(ended(ago(past))), container(waiting("PodInitializing"))), 0},
		{"kubelet lost one container of two", pod(failed, container(ended(ago(past)), lost())), 0},
		{"the status of one container is missing", pod(failed, container(ended(ago(past))), func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second"})
		}), 0},
		{"the status of an init container is missing", pod(failed, container(ended(ago(past))), func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "sidecar"})
		}), 0},
		{"the status of an ephemeral container is missing", pod(failed, container(ended(ago(past))), func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
		}), 0},

		{"the same, and the sandbox is gone", pod(evicted, container(waiting("ImagePullBackOff")), condition(sandboxUp, no, ago(day))), day},
		{"gone a minute ago", pod(evicted, container(waiting("ImagePullBackOff")), condition(sandboxUp, no, ago(recent))), recent},
		{"gone, and a container ended after that", pod(failed, container(ended(ago(day)), lost()), condition(sandboxUp, no, ago(past))), day},
		{"gone, and another container had ended again after that", pod(failed, container(endedBefore(ago(day)), lost()), condition(sandboxUp, no, ago(past))), day},
		{"gone, and it was ready after that", pod(failed, container(lost()), condition(sandboxUp, no, ago(past)), condition(corev1.PodReady, no, ago(day))), day},
		{"gone, and it was started after that", pod(failed, container(lost()), condition(sandboxUp, no, ago(7*day))), 3 * day},
		{"gone, nobody knows when", pod(failed, container(lost()), condition(sandboxUp, no, time.Time{})), 0},
		{"the scheduler's clock is another", pod(failed, container(lost()), condition(corev1.PodScheduled, yes, ago(recent)), condition(sandboxUp, no, ago(past))), past},
		{"still up", pod(failed, container(lost()), condition(sandboxUp, yes, ago(past))), 0},
		{"still up, and the status was written long ago", pod(failed, container(lost()), condition(sandboxUp, yes, ago(past)), written("status", ofStatus, stamp(ago(past)))), 0},

		{"older kubelets: the status has not changed for a day", pod(failed, container(lost()), written("status", ofStatus, stamp(ago(day)))), day},
		{"it has just changed", pod(failed, container(lost()), written("status", ofStatus, stamp(ago(past))), written("status", ofStatus, stamp(ago(recent)))), recent},
		{"before 1.22 the subresource is not named", pod(failed, container(lost()), written("", ofStatus, stamp(ago(day)))), day},
		{"a label is no status", pod(failed, container(lost()), written("", ofMeta, stamp(ago(past)))), 0},
		{"an entry without a time", pod(failed, container(lost()), written("status", ofStatus, nil)), 0},
		{"the API server's clock is behind", pod(failed, container(ended(ago(recent)), lost()), written("status", ofStatus, stamp(ago(day)))), recent},

		{"rejected", pod(phase(corev1.PodFailed, "OutOfcpu")), 3 * day},
		{"rejected a minute ago", pod(phase(corev1.PodFailed, "OutOfcpu"), started(stamp(ago(recent)))), recent},
		{"rejected by a kubelet that was restarted: it had run until then", pod(phase(corev1.PodFailed, "OutOfcpu"), written("status", ofStatus, stamp(ago(recent)))), recent},
		{"rejected, and scheduled before", pod(evicted, condition(corev1.PodScheduled, yes, ago(4*day))), 3 * day},
		{"rejected, and nobody knows when", pod(evicted, started(nil)), 0},
		{"never seen by a kubelet, marked from afar", pod(evicted, started(nil), written("status", ofStatus, stamp(ago(day)))), day},
		{"no reason is given: not kubelet's rejection", pod(failed), 0},
		{"it has an address: not rejected", pod(evicted, podIPs("10.0.0.2")), 0},
		{"it has podIP alone: not rejected", pod(evicted, func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }), 0},
		{"kubelet saw it start: not rejected", pod(evicted, condition(corev1.PodInitialized, no, ago(past))), 0},
		{"it has an init container: not rejected", pod(evicted, initContainer(waiting("PodInitializing"))), 0},
		{"what succeeded was not rejected", pod(phase(corev1.PodSucceeded, "Evicted")), 0},
	} {
		got := finishedAt(row.pod)
		var want time.Time
		if row.want != 0 {
			want = ago(row.want)
		}
		if !got.Equal(want) {
			t.Errorf("%s: got %v, want %v", row.reason, got, want)
		}
	}
}

// A pod that finished long ago holds nothing, whatever its status lists.
func TestHazard12FinishedLongAgo(t *testing.T) {
	succeeded := pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(past))))
	if got := verdict(t, 4*day, succeeded); got != gc.Released {
		t.Errorf("leaked: got %v, want %v", got, gc.Released)
	}
	live := pod(podIPs("10.0.0.2"))
	live.Name, live.UID = "other", "7c9e6679"
	if got := verdict(t, 4*day, succeeded, live); got != gc.InUse {
		t.Errorf("used again: got %v, want %v", got, gc.InUse)
	}
}

// A pod that has just finished is live: its sandbox goes after its containers.
func TestHazard13JustFinished(t *testing.T) {
	evicted := phase(corev1.PodFailed, "Evicted")
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   gc.Verdict
	}{
		{"succeeded, with its address", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(recent)))), gc.InUse},
		{"failed, without any", pod(phase(corev1.PodFailed, ""), container(ended(ago(recent)))), gc.Starting},
		{"an init container had ended long before it was evicted",
			pod(evicted, initContainer(ended(ago(past))), container(waiting("ImagePullBackOff")), condition(sandboxUp, no, ago(recent))), gc.Starting},
		{"evicted, its sandbox up", pod(evicted, container(waiting("ImagePullBackOff")), condition(sandboxUp, yes, ago(past))), gc.Starting},
		{"evicted, its container still running", pod(evicted, podIPs("10.0.0.2"), container(running())), gc.InUse},
	} {
		if got := verdict(t, past, row.pod); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}

// Pods that failed without ever having an address stay for days, and hold back
// nobody's leak.
func TestHazard31NeverHadAnAddress(t *testing.T) {
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
	}{
		{"rejected: its status has next to nothing", pod(phase(corev1.PodFailed, "OutOfcpu"), started(stamp(ago(past))))},
		{"rejected, as the API server holds it", pod(phase(corev1.PodFailed, "Evicted"), started(stamp(ago(past))),
			condition(corev1.PodScheduled, yes, ago(past)), written("status", `{"f:status":{}}`, stamp(ago(past))))},
		{"evicted before a container started", pod(phase(corev1.PodFailed, "Evicted"), container(waiting("ContainerCreating")),
			condition(sandboxUp, no, ago(past)), condition(corev1.PodReady, no, ago(past)))},
		{"out of time, its containers unknown", pod(phase(corev1.PodFailed, "DeadlineExceeded"), container(lost()), condition(sandboxUp, no, ago(past)))},
		{"marked from afar, and never seen by a kubelet", pod(phase(corev1.PodFailed, ""), started(nil), written("status", `{"f:status":{}}`, stamp(ago(past))))},
	} {
		if got := verdict(t, day, row.pod); got != gc.Released {
			t.Errorf("%s: got %v, want %v", row.reason, got, gc.Released)
		}
	}
}
