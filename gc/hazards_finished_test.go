// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards about pods that have finished: they hold their addresses for
// five minutes (R5), and an answer needs another pod (R9).

// A pod that finished long ago holds nothing, whatever its status lists.
func TestHazard12FinishedPodListsItsAddress(t *testing.T) {
	finished := podsource.Pod{NamespacedName: named("job"), UID: "1", IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(-6 * time.Minute)}
	t.Run("used again", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "live", old)
		report := n.pass(podsource.Static{finished, {NamespacedName: named("web"), UID: "2", IPs: ips("10.0.0.2")}}, Options{})
		n.check(report, map[string]Verdict{"10.0.0.2": InUse})
		if len(report.Duplicates) != 0 {
			t.Errorf("the finished pod's address counts as a duplicate: %v", report.Duplicates)
		}
	})
	t.Run("at the boundary", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "dead", old)
			job := finished
			job.FinishedAt = time.Now()
			r := n.reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) {
				defer time.Sleep(10 * time.Second) // the five minutes count up to the call
				return []podsource.Pod{other, job}, nil
			}), Options{})
			time.Sleep(5*time.Minute - 1)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": InUse})
			time.Sleep(time.Nanosecond)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		})
	})
}

// A pod that has just finished is live: its sandbox is removed after its containers.
func TestHazard13JustFinished(t *testing.T) {
	for _, c := range []struct {
		reason string
		pod    podsource.Pod
		want   Verdict
	}{
		{"with its address", podsource.Pod{IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(-4 * time.Minute)}, InUse},
		{"without any, but with its start", podsource.Pod{StartedAt: time.Now().Add(-2 * old), FinishedAt: time.Now().Add(-4 * time.Minute)}, Starting},
		{"by a timestamp in the future", podsource.Pod{IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(old)}, InUse},
		{"without a reported end", podsource.Pod{IPs: ips("10.0.0.2"), Finished: true}, InUse},
	} {
		for _, minAge := range []time.Duration{0, time.Second, 24 * time.Hour} { // the removal of a sandbox does not depend on it
			t.Run(c.reason, func(t *testing.T) {
				n := newNode(t)
				n.reserve("10.0.0.2", "sandbox", 48*time.Hour)
				pod := c.pod
				if pod.StartedAt != (time.Time{}) {
					pod.StartedAt = pod.StartedAt.Add(-72 * time.Hour)
				}
				n.check(n.pass(podsource.Static{pod}, Options{MinAge: minAge}), map[string]Verdict{"10.0.0.2": c.want})
			})
		}
	}
	// If no end is reported, or one that can't be used, the five minutes count from when
	// this process first saw the pod finished.
	const held, half, minute = 5 * time.Minute, 5 * time.Minute / 2, time.Minute
	type pass struct {
		after time.Duration
		want  Verdict
	}
	inUse := []pass{{0, InUse}, {held - 1, InUse}, {1, Released}}
	finished, runs := podsource.Pod{UID: "1", Finished: true, IPs: ips("10.0.0.2")}, podsource.Pod{UID: "1", IPs: ips("10.0.0.2")}
	job := func(id string) podsource.Pod {
		return podsource.Pod{NamespacedName: named("job"), ContainerIDs: []string{id}, Finished: true}
	}
	for _, c := range []struct {
		reason string
		pods   []podsource.Pod // one in each pass, and then the last one again
		passes []pass
	}{
		{"no end is reported, by UID", []podsource.Pod{finished}, inUse},
		{"by name", []podsource.Pod{{NamespacedName: named("job"), Finished: true, IPs: ips("10.0.0.2")}}, inUse},
		{"by container", []podsource.Pod{{Finished: true, IPs: ips("10.0.0.2"), ContainerIDs: []string{"dead"}}}, inUse},
		{"by address", []podsource.Pod{{Finished: true, IPs: ips("10.0.0.2")}}, inUse},
		{"the end is in the future", []podsource.Pod{{UID: "1", IPs: ips("10.0.0.2"), FinishedAt: time.Unix(1<<32, 0)}}, inUse},
		{"one that names nothing may hold any reservation for as long", []podsource.Pod{{Finished: true}},
			[]pass{{0, Starting}, {held - 1, Starting}, {1, Released}}},
		{"its address is removed from its status", []podsource.Pod{finished, {UID: "1", Finished: true}},
			[]pass{{0, InUse}, {half, Starting}, {half, Released}}},
		{"it ran in between: the five minutes start over", []podsource.Pod{finished, runs, finished},
			[]pass{{0, InUse}, {4 * minute, InUse}, {4 * minute, InUse}, {4 * minute, InUse}, {minute, Released}}},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "dead", old)
			var looks [][]podsource.Answer
			for _, p := range c.pods {
				looks = append(looks, plain(other, p))
			}
			r := n.reconciler(inTurn(looks...), Options{})
			for _, pass := range c.passes {
				time.Sleep(pass.after)
				n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": pass.want})
			}
		}))
	}
	t.Run("the clock was set forward since", inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", 24*time.Hour)
		clk := &clocks{uptime: 30 * 24 * time.Hour}
		job := podsource.Pod{UID: "1", IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(-time.Minute)}
		r := newReconciler(t, n.store, []string{network1}, podsource.Static{other, job}, Options{}, clk)
		clk.step = time.Hour
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": InUse})
		time.Sleep(held - 1)
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": InUse})
	}))
	t.Run("another of its name finished before", inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "second", old)
		r := n.reconciler(inTurn(plain(other, job("first"), sandbox("2", "second")), plain(other, job("second"))), Options{})
		for _, want := range []Verdict{InUse, InUse, Released} {
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": want})
			time.Sleep(held)
		}
	}))
}

// R9 does not count pods that finished long ago. On nodes with batch jobs, a list of another
// node or an old list may have no others.
func TestHazard43OnlyFinishedPods(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		job := podsource.Pod{UID: "1", Finished: true}
		r := n.reconciler(inTurn(plain(job), plain(job), plain(job), plain(podsource.Pod{UID: "1"})), Options{})
		for i, want := range []error{nil, nil, ErrNoPods, nil} {
			time.Sleep([]time.Duration{0, 5*time.Minute - 1, 1, time.Hour}[i])
			if _, err := r.Reconcile(t.Context()); !errors.Is(err, want) {
				t.Errorf("pass %d: got error %v, want %v", i+1, err, want)
			}
		}
		agent := podsource.Pod{NamespacedName: named("agent"), FinishedAt: time.Now()}
		r = n.reconciler(podsource.Require(podsource.Static{other, agent}, agent.NamespacedName), Options{})
		if _, err := r.Reconcile(t.Context()); !errors.Is(err, podsource.ErrIncomplete) {
			t.Errorf("the required pod has finished: got error %v", err)
		}
	})(t)
}
