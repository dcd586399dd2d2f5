// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// The hazards of a wrong status or annotation.

// The clock was set back after the pods ended, so the times of their ends are in the future.
// The pods hold their addresses for five minutes from now.
//
// Guard: [kubepod.Convert] sets Finished whatever the times are.
func TestHazard48FinishedBeforeAStepOfTheClock(t *testing.T) {
	n := newNode(t)
	job, unmatched := n.reserve("job", 3*old), n.reserve("unmatched", old)
	n.pod("job", finished(corev1.PodSucceeded, -time.Hour), with(job...))
	n.backdate(n.pod("evicted", evicted(-time.Hour)), -time.Hour)
	n.pod("agent", onHostNetwork)
	report := n.collect(map[string]gc.Verdict{only(job): gc.InUse, only(unmatched): gc.Starting})
	if left := time.Until(report.NextCheck); left > 5*time.Minute {
		t.Errorf("the next check is in %v: they would hold for longer than five minutes", left)
	}
}

// A kubelet that was restarted rejects a pod that runs. It writes a status with a phase and a
// reason, and without the containers.
//
// Guard: [kubepod.Convert] does not use the start of a rejected pod as its end.
func TestHazard56RejectedWhileItRuns(t *testing.T) {
	n := newNode(t)
	held, unmatched := n.reserve("held", old), n.reserve("unmatched", old)
	n.pod("agent", onHostNetwork)
	running := n.pod("web", with(held...), running)
	n.pod("starting", started(2*old), phase(corev1.PodPending))
	n.collect(map[string]gc.Verdict{only(held): gc.InUse, only(unmatched): gc.Starting})
	n.remove("starting", 0)

	reject := func(pod *corev1.Pod) *corev1.Pod {
		t.Helper()
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "NodeAffinity"
		pod.Status.ContainerStatuses = nil
		return n.setPodStatus(pod)
	}
	rejected := reject(running)
	other := reject(n.pod("other", started(2*old)))
	n.collect(map[string]gc.Verdict{only(held): gc.InUse, only(unmatched): gc.Starting})
	n.backdate(rejected, 5*time.Minute)
	n.backdate(other, 5*time.Minute)
	n.collect(map[string]gc.Verdict{only(held): gc.Released, only(unmatched): gc.Released})
}

// All containers have ended, and kubelet reports that the sandbox is up.
//
// Guard: [kubepod.Convert] uses the condition rather than the statuses of the containers.
func TestHazard57SandboxStillUp(t *testing.T) {
	n := newNode(t)
	held := n.reserve("held", old)
	n.pod("agent", onHostNetwork)
	job := n.pod("job", finished(corev1.PodSucceeded, time.Hour), with(held...), sandboxUp(corev1.ConditionTrue, old))
	n.collect(map[string]gc.Verdict{only(held): gc.InUse})
	sandboxUp(corev1.ConditionFalse, time.Minute)(job)
	job = n.setPodStatus(job)
	n.collect(map[string]gc.Verdict{only(held): gc.InUse}) // it has just gone
	sandboxUp(corev1.ConditionFalse, 5*time.Minute)(job)
	n.setPodStatus(job)
	n.collect(map[string]gc.Verdict{only(held): gc.Released})
}

// A tenant wrote an annotation that can't be read. That pod may hold more addresses than
// known, and the pass goes on.
//
// Guard: [kubepod.Convert] returns no error, and the note of [Source.Pods] names the pod.
func TestHazard67GarbageInTheAnnotation(t *testing.T) {
	n := newNode(t)
	before, since, held, garbage := n.reserve("before", 3*old), n.reserve("since", old), n.reserve("held", 3*old), n.reserve("garbage", 3*old)
	n.pod("web", with(held...))
	n.pod("tenants", with(garbage...), annotated("k8s.v1.cni.cncf.io/network-status", `[{"ips":["10.9.0.3"]`))
	report := n.collect(map[string]gc.Verdict{
		only(before): gc.Released, only(since): gc.Starting, only(held): gc.InUse, only(garbage): gc.InUse,
	})
	if note := report.Sources[0].Note; !strings.Contains(note, n.namespace+"/tenants") {
		t.Errorf("the report does not name the pod: %q", note)
	}
}

// The mirror of a static pod has the start that a restarted kubelet gave it, which is later
// than that of its sandbox.
//
// Guard: [kubepod.Convert] sets no start for a static pod.
func TestHazard76StaticPodAfterAKubeletRestart(t *testing.T) {
	n := newNode(t)
	unmatched, held := n.reserve("unmatched", 3*old), n.reserve("held", old)
	n.pod("web", with(held...))
	n.pod("static", phase(corev1.PodPending), started(time.Minute), func(pod *corev1.Pod) {
		annotated(corev1.MirrorPodAnnotationKey, "5c7b9a1e")(pod)
		annotated("kubernetes.io/config.source", "file")(pod)
	})
	n.collect(map[string]gc.Verdict{only(unmatched): gc.Starting, only(held): gc.InUse})
}
