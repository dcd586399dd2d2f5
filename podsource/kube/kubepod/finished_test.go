// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
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

// A pod that finished long ago holds nothing, also if its status has addresses.
//
// Guard: [finished] returns the end of a pod.
func TestHazard12FinishedLongAgo(t *testing.T) {
	succeeded := pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(past))))
	if got := verdict(t, 4*day, succeeded, agent()); got != gc.Released {
		t.Errorf("leaked: got %v, want %v", got, gc.Released)
	}
	live := pod(podIPs("10.0.0.2"))
	live.Name, live.UID = "other", "7c9e6679"
	if got := verdict(t, 4*day, succeeded, live); got != gc.InUse {
		t.Errorf("used again: got %v, want %v", got, gc.InUse)
	}
}

// A pod that has just finished is live, since its sandbox is removed after its containers.
// A pod with a running container or a sandbox that is up has not finished.
//
// Guard: [finished] returns the latest time in the pod's status, and none while a container
// runs or the sandbox is up.
func TestHazard13JustFinished(t *testing.T) {
	evicted := phase(corev1.PodFailed, "Evicted")
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   gc.Verdict
		later  gc.Verdict // five minutes later
	}{
		{"succeeded, with its address", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(recent)))), gc.InUse, gc.Released},
		{"failed, without any", pod(phase(corev1.PodFailed, ""), container(ended(ago(recent)))), gc.Starting, gc.Released},
		{"an init container had ended long before it was evicted", pod(evicted, initContainer(ended(ago(past))),
			container(waiting("ImagePullBackOff")), condition(sandboxUp, no, ago(recent))), gc.Starting, gc.Released},
		{"evicted, its sandbox up", pod(evicted, container(waiting("ImagePullBackOff")), condition(sandboxUp, yes, ago(past))), gc.Starting, gc.Starting},
		{"evicted, its container still running", pod(evicted, podIPs("10.0.0.2"), container(running())), gc.InUse, gc.InUse},
	} {
		if got, later := verdicts(t, 5*time.Minute, past, row.pod, agent()); got != row.want || later != row.later {
			t.Errorf("%s: got %v and later %v, want %v and %v", row.reason, got, later, row.want, row.later)
		}
	}
}

// Pods that failed without ever having an address stay for days. They keep no leak later
// than five minutes after their end, or after they were first seen finished.
//
// Guard: [finished] reports a pod without any time as finished, too.
func TestHazard31NeverHadAnAddress(t *testing.T) {
	const firstSeen = gc.Starting // the verdict on the leak when the pod is first seen
	for _, row := range []struct {
		reason string
		first  gc.Verdict
		pod    *corev1.Pod
	}{
		{"rejected: its status has a reason and a start", firstSeen, pod(phase(corev1.PodFailed, "OutOfcpu"), started(stamp(ago(past))))},
		{"rejected, with the managed fields of the API server", gc.Released, pod(phase(corev1.PodFailed, "Evicted"), started(stamp(ago(past))),
			condition(corev1.PodScheduled, yes, ago(past)), written("status", stamp(ago(past))))},
		{"evicted before a container started", gc.Released, pod(phase(corev1.PodFailed, "Evicted"), container(waiting("ContainerCreating")),
			condition(sandboxUp, no, ago(past)), condition(corev1.PodReady, no, ago(past)))},
		{"evicted before a container started, by a kubelet that does not report sandboxes", firstSeen,
			pod(phase(corev1.PodFailed, "Evicted"), container(waiting("ContainerCreating")))},
		{"exceeded its deadline, with lost containers", gc.Released, pod(phase(corev1.PodFailed, "DeadlineExceeded"), container(lost()), condition(sandboxUp, no, ago(past)))},
		{"marked as failed by a controller, and never seen by a kubelet", gc.Released, pod(phase(corev1.PodFailed, ""), started(nil), written("status", stamp(ago(past))))},
		{"marked as failed by a controller at an unknown time", firstSeen, pod(phase(corev1.PodFailed, ""), started(nil))},
	} {
		if got := verdict(t, day, row.pod, agent()); got != row.first {
			t.Errorf("%s: at first got %v, want %v", row.reason, got, row.first)
		}
		if row.first == firstSeen {
			if _, got := verdicts(t, 5*time.Minute, day, row.pod, agent()); got != gc.Released {
				t.Errorf("%s: five minutes later got %v, want %v", row.reason, got, gc.Released)
			}
		}
	}
}

// No step of the clock makes a finished pod hold its addresses for ever. If the time of its
// end is from before the step, its five minutes begin when it was first seen finished.
//
// Guard: [finished] reports a pod as finished whatever its times are.
func TestHazard48FinishedBeforeAStepOfTheClock(t *testing.T) {
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
	}{
		{"evicted: no time at all", pod(phase(corev1.PodFailed, "Evicted"))},
		{"a finished job, with an end in the future since the clock was set back", pod(phase(corev1.PodSucceeded, ""), container(ended(ago(-day))))},
		{"started before the clock was set back, ended after it", pod(phase(corev1.PodSucceeded, ""), started(stamp(ago(-day))), container(ended(ago(past))))},
	} {
		if first, second := verdicts(t, 5*time.Minute-time.Second, past, row.pod, agent()); first != gc.Starting || second != gc.Starting {
			t.Errorf("%s: got %v and then %v, want %v", row.reason, first, second, gc.Starting)
		}
		if _, second := verdicts(t, 5*time.Minute, past, row.pod, agent()); second != gc.Released {
			t.Errorf("%s: five minutes later got %v, want %v", row.reason, second, gc.Released)
		}
	}
}

// A kubelet that was restarted may reject a pod that runs. The phase is then Failed, no
// container has a status, and the start is the old one. The containers end later.
//
// Guard: [finished] returns no end for a rejected pod: its start may be older.
func TestHazard56RejectedWhileItRuns(t *testing.T) {
	rejected := pod(phase(corev1.PodFailed, "NodeAffinity"), started(stamp(ago(past))))
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   gc.Verdict // until five minutes after it was first seen finished
	}{
		{"without addresses", rejected, gc.Starting},
		{"with those that the API server still lists", pod(phase(corev1.PodFailed, "NodeAffinity"), podIPs("10.0.0.2")), gc.InUse},
	} {
		first, second := verdicts(t, 5*time.Minute-time.Second, day, row.pod, agent())
		if first != row.want || second != row.want {
			t.Errorf("%s: got %v and then %v, want %v: its containers may not have ended", row.reason, first, second, row.want)
		}
		if _, second = verdicts(t, 5*time.Minute, day, row.pod, agent()); second != gc.Released {
			t.Errorf("%s: five minutes later got %v, want %v", row.reason, second, gc.Released)
		}
	}
}

// All containers have ended, and kubelet reports that the sandbox is up. It may be stopped
// hours later, for example when a volume can't be unmounted.
//
// Guard: [finished] uses the condition rather than the statuses of the containers.
func TestHazard57SandboxStillUp(t *testing.T) {
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   gc.Verdict
	}{
		{"it lists its address", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(past))), condition(sandboxUp, yes, ago(past))), gc.InUse},
		{"it lists none", pod(phase(corev1.PodFailed, ""), container(ended(ago(past))), condition(sandboxUp, yes, ago(past))), gc.Starting},
		{"the sandbox is gone", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(past))), condition(sandboxUp, no, ago(past))), gc.Released},
	} {
		if got := verdict(t, day, row.pod, agent()); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}
