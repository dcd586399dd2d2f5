// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards about starting pods, which may hold any reservation made since
// their start (R4). starting_test.go tests how that claim ends.

// R5 for reservations that no source can know yet, R4 for pods that are known to start.
func TestHazard04ADDInFlight(t *testing.T) {
	const unknown = time.Duration(-1)
	for _, c := range []struct {
		reason  string
		age     time.Duration
		known   bool          // that the pod is starting
		started time.Duration // how long before the reservation was made
		want    Verdict
	}{
		{"no source knows the pod yet", 6*time.Minute + 50*time.Second, false, 0, Young},
		{"no ADD is in flight for so long", 7*time.Minute + time.Second, false, 0, Released},
		{"the pod is known, and started before the reservation was made", 10 * time.Minute, true, time.Minute, Starting},
		{"the pod is known, but not its start", 10 * time.Minute, true, unknown, Starting},
		{"the pod is known, and the reservation older than it", 10 * time.Minute, true, -time.Minute, Released},
		{"the pod started in the same tick of the clock as the reservation", 10 * time.Minute, true, -5 * time.Millisecond, Starting},
		{"... or later, within the tolerance of the clock", 10 * time.Minute, true, -210 * time.Millisecond, Starting},
		{"the pod started later than that", 10 * time.Minute, true, -211 * time.Millisecond, Released},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "sandbox", c.age)
			info, err := os.Stat(n.path("10.0.0.2"))
			must(t, err)
			pods := podsource.Static{other}
			if c.known {
				p := podsource.Pod{NamespacedName: named("web")}
				if c.started != unknown {
					p.StartedAt = info.ModTime().Add(-c.started)
				}
				pods = append(pods, p)
			}
			n.check(n.pass(pods, Options{}), map[string]Verdict{"10.0.0.2": c.want})
		})
	}
	// Some file systems keep only whole seconds, the coarsest of them only even ones.
	for _, c := range []struct {
		started time.Duration // after the reservation
		want    Verdict
	}{
		{2 * time.Second, Starting},
		{2210 * time.Millisecond, Starting},
		{2211 * time.Millisecond, Released},
	} {
		n := newNode(t)
		stamp := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
		n.fileAt(network1, "10.0.0.2", "sandbox", stamp)
		pods := podsource.Static{other, startingPod("web", stamp.Add(c.started))}
		n.check(n.pass(pods, Options{}), map[string]Verdict{"10.0.0.2": c.want})
	}
}

// R4 with a start: a pod does not hold a reservation older than the pod.
func TestHazard32PodStuckForDays(t *testing.T) {
	const day = 24 * time.Hour
	n := newNode(t)
	n.reserve("10.0.0.2", "older", 4*day)
	n.reserve("10.0.0.3", "younger", 2*day)
	report := n.pass(podsource.Static{other, startingPod("stuck", time.Now().Add(-3*day))}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Starting})
	if pod := report.Reservations[1].Pod; pod == nil || pod.Name != "stuck" {
		t.Errorf("the report names pod %v, want stuck", pod)
	}
	// The earliest start counts, in any order of the pods.
	for _, pods := range []podsource.Static{
		{startingPod("a", time.Now()), startingPod("stuck", time.Now().Add(-3*day))},
		{startingPod("stuck", time.Now().Add(-3*day)), startingPod("a", time.Now())},
	} {
		n.check(n.pass(pods, Options{}), map[string]Verdict{"10.0.0.3": Starting})
	}
}

// Each retry of a pod leaks an address, so the pod never starts, and its claim would keep
// its own leaks for ever (containerd#12130).
func TestHazard39LeaksOfAPodThatNeverStarts(t *testing.T) {
	const started = 40 * time.Minute
	web := func() podsource.Pod { return startingPod("web", time.Now().Add(-started)) }
	fill := func(n *node) {
		n.reserve("10.0.0.2", hex64("try 1"), 30*time.Minute)
		n.reserve("10.0.0.3", hex64("try 2"), 15*time.Minute)
		n.reserve("10.0.0.4", hex64("try 3"), 8*time.Minute)
		n.reserve("10.0.0.5", hex64("try 4"), 2*time.Minute) // its ADD is in flight
	}
	t.Run("kubelet and the runtime: within StartingFor", inBubble(func(t *testing.T) {
		n := newNode(t)
		fill(n)
		report := n.pass(answers(kubeletAnswer(web()), criAnswer()), Options{})
		n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Released, "10.0.0.4": Starting, "10.0.0.5": Young})
	}))
	t.Run("with netns and a cache that passed: at MinAge", inBubble(func(t *testing.T) {
		n := newNode(t)
		fill(n)
		n.reserve("10.0.0.9", hex64("db"), old)
		db := attached(network1, hex64("db"), "10.0.0.9")
		source := answers(netnsAnswer(adding(hex64("try 4")), configured("10.0.0.9")), cacheAnswer([]podsource.Pod{db}), kubeletAnswer(web()))
		report := n.pass(source, Options{MinAge: 5 * time.Minute})
		n.check(report, map[string]Verdict{
			"10.0.0.2": Released, "10.0.0.3": Released, "10.0.0.4": Released, "10.0.0.5": InUse, "10.0.0.9": InUse})
		if report.Looks != 2 {
			t.Errorf("asked %d times, want twice", report.Looks)
		}
	}))
	t.Run("the API server alone: kept for as long as the pod is starting", inBubble(func(t *testing.T) {
		n := newNode(t)
		fill(n)
		r := n.reconciler(answers(kubeletAnswer(web())), Options{})
		n.reconcile(r)
		time.Sleep(24 * time.Hour)
		report := n.reconcile(r)
		want := map[string]Reason{"10.0.0.2": StartingNoEnd, "10.0.0.3": StartingNoEnd, "10.0.0.4": StartingNoEnd, "10.0.0.5": StartingNoEnd}
		n.checkReasons(report, want)
		if pod := report.Reservations[0].Pod; pod == nil || pod.Name != "web" {
			t.Errorf("the report names pod %v, want web", pod)
		}
		if text := report.Reservations[0].Reason.Text(); !strings.Contains(text, "container runtime") {
			t.Errorf("the report does not say which source would end it: %s", text)
		}
	}))
}

// After a reboot the pool may be full of reservations from before it, and all pods are
// starting with their old UIDs.
func TestHazard40RebootWithAFullPool(t *testing.T) {
	all := func(v Verdict) map[string]Verdict {
		return map[string]Verdict{"10.0.0.2": v, "10.0.0.3": v, "10.0.0.4": v}
	}
	for _, c := range []struct {
		reason string
		member podsource.Answer
		want   map[string]Verdict // after the hook
	}{
		{"netns and a record: in the hook", recordAnswer([]string{network1}), all(Released)},
		{"netns and the cache: what has a proven entry in the hook", cacheAnswer(nil, stale(network1, hex64("web"))),
			map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Young, "10.0.0.4": Young}},
		{"netns and an entry that is not proven: later", cacheAnswer([]podsource.Pod{{Network: network1, ContainerIDs: []string{hex64("web")}, Unproven: true, StartedAt: time.Unix(1, 0)}}), all(Young)},
		{"netns and the runtime: later", criAnswer(), all(Young)},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), old)
			n.reserve("10.0.0.3", hex64("db"), 20*time.Minute)
			n.file("10.0.0.4", "", 20*time.Minute)
			starting := kubeletAnswer(startingPod("web", time.Now().Add(-2*old)), startingPod("static", time.Time{}))
			source := answers(netnsAnswer(), c.member, starting)
			r := newReconciler(t, n.store, []string{network1}, source, Options{}, &clocks{uptime: 5 * time.Minute})
			n.check(n.atStartup(r), c.want)
			time.Sleep(DefaultMinAge + 1)
			for _, e := range n.reconcile(r).Reservations {
				if e.Verdict != Released {
					t.Errorf("L later %v is %s", e.IP, e.Reason)
				}
			}
		}))
	}
}
