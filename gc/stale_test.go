// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests R5 with answers that are older than the pass: ages count up to the oldest.

// An answer is an hour old.
func TestHazard62StaleList(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		age     time.Duration
		want    Reason
	}{
		{"younger than the list", []podsource.Answer{asOf(criAnswer(), -hour)}, 59 * time.Minute, TooYoung},
		{"a nanosecond younger than L when the list was true", []podsource.Answer{asOf(criAnswer(), -hour)}, hour + DefaultMinAge - 1, TooYoung},
		{"as old as L when the list was true", []podsource.Answer{asOf(criAnswer(), -hour)}, hour + DefaultMinAge, ReleasedLeak},
		{"the oldest answer counts", []podsource.Answer{kubeletAnswer(), asOf(criAnswer(), -hour), netnsAnswer()}, hour, TooYoung},
		{"... also a supplementary one", []podsource.Answer{kubeletAnswer(), asOf(netnsAnswer(), -hour)}, hour, TooYoung},
		{"in the future", []podsource.Answer{asOf(criAnswer(), time.Second)}, 24 * hour, StaleAnswer},
		{"in the future, within the tolerance of the clocks", []podsource.Answer{asOf(criAnswer(), clockTolerance)}, 24 * hour, ReleasedLeak},
		{"one of two is in the future", []podsource.Answer{asOf(kubeletAnswer(), hour), criAnswer()}, 24 * hour, StaleAnswer},
	} {
		t.Run(c.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.reserve("10.0.0.2", hex64("web"), c.age)
				n.reserve("10.0.0.3", hex64("proxy"), c.age) // in use by R3, whatever the age of the answers
				report := n.pass(answers(append(c.members, plain(sandbox("1", hex64("proxy")))[0])...), Options{})
				n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want, "10.0.0.3": ContainerLive})
			})
		})
	}
	// An answer that was true while the pass asked is not old, however slow the source is.
	t.Run("true while a slow source was asked", inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), DefaultMinAge)
		source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			a := criAnswer()
			a.AsOf = time.Now()
			time.Sleep(10 * time.Second)
			return a, nil
		})
		n.check(n.pass(source, Options{}), map[string]Verdict{"10.0.0.2": Released})
	}))
	t.Run("in a loop, older than two intervals is an error", inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("leaked"), 24*hour)
		n.reserve("10.0.0.3", hex64("proxy"), 24*hour)
		age := 21 * time.Minute
		source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			a := criAnswer(sandbox("1", hex64("proxy")))
			a.AsOf = time.Now().Add(-age)
			return a, nil
		})
		var errs []error
		r := n.reconciler(source, Options{Interval: 10 * time.Minute, OnReport: func(_ Report, err error) { errs = append(errs, err) }})
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
		defer cancel()
		_ = r.Start(ctx)
		if len(errs) < 2 || errs[0] != nil { // the limit is only for the loop's own passes
			t.Fatalf("got errors %v, want none from the hook, and then one", errs)
		}
		for _, err := range errs[1:] {
			if !errors.Is(err, ErrRefused) || errors.Is(err, ErrNoPods) || errors.Is(err, ErrSourceTimeout) ||
				!strings.Contains(err.Error(), "cri was last known to be true 21m0s ago, which is more than two intervals of 10m0s") {
				t.Errorf("got error %v, want one about its age", err)
			}
		}
		errs, age = nil, 20*time.Minute // exactly two intervals
		ctx, cancel = context.WithTimeout(t.Context(), 12*time.Minute)
		defer cancel()
		_ = r.Start(ctx)
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
	}))
}

// A list was written before a step of the clock. Its date says nothing until it is written again.
func TestHazard75ListFromBeforeAStepOfTheClock(t *testing.T) {
	for _, c := range []struct {
		reason string
		step   time.Duration
		after  time.Duration // the pass, from the step on
	}{
		{"back, before the same time comes again", -time.Hour, 10 * time.Minute},
		{"back, after the same time came again", -time.Hour, 70 * time.Minute},
		{"forward", time.Hour, 10 * time.Minute},
		{"back by little", -200 * time.Millisecond, 10 * time.Minute},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), 24*time.Hour)
			d := newDatedSource(t, n)
			d.written = d.wall()
			n.checkReasons(n.reconcile(d.Reconciler), map[string]Reason{"10.0.0.2": ReleasedLeak})
			n.reserve("10.0.0.2", hex64("web"), 24*time.Hour)
			time.Sleep(time.Second)
			d.step = c.step
			time.Sleep(c.after)
			n.checkReasons(n.reconcile(d.Reconciler), map[string]Reason{"10.0.0.2": StaleAnswer})
			// Until it is written by a clock beyond any time from before the step, and the
			// reservation was seen for long enough.
			time.Sleep(max(0, -c.step) + DefaultMinAge + time.Second)
			d.written = d.wall()
			n.check(n.reconcile(d.Reconciler), map[string]Verdict{"10.0.0.2": Released})
		}))
	}
}

// A datedSource is a source with dated answers, on a node whose clock a test sets.
type datedSource struct {
	*Reconciler
	*clocks
	written time.Time
	asked   func() // if set, is called while the source is asked
}

func newDatedSource(t *testing.T, n *node) *datedSource {
	d := &datedSource{clocks: &clocks{uptime: 30 * 24 * time.Hour}}
	d.Reconciler = newReconciler(t, n.store, []string{network1}, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		a := criAnswer()
		a.Source, a.AsOf = "file", d.written
		if d.asked != nil {
			d.asked()
		}
		return a, nil
	}), Options{}, d.clocks)
	return d
}

// A date is in the future by the clock before or after a step while the sources are asked.
func TestHazard75FutureDateAndAStepWhileAsked(t *testing.T) {
	for _, c := range []struct {
		reason     string
		date, step time.Duration
	}{
		{"the clock is set beyond it", 24 * time.Hour, 10 * 365 * 24 * time.Hour},
		{"it is a minute ahead, and the clock is set beyond it", time.Minute, 10 * 365 * 24 * time.Hour},
		{"the clock is set to before it", 0, -time.Hour},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), 0)
			d := newDatedSource(t, n)
			d.written = d.wall()
			n.checkReasons(n.reconcile(d.Reconciler), map[string]Reason{"10.0.0.2": TooYoung})
			time.Sleep(2 * DefaultMinAge)
			d.written = d.wall().Add(c.date)
			d.asked = func() { d.step = c.step }
			n.checkReasons(n.reconcile(d.Reconciler), map[string]Reason{"10.0.0.2": StaleAnswer})
			d.asked = nil
			time.Sleep(2 * time.Hour) // until the clock has caught up
			for range 3 {
				d.written = d.wall()
				n.reconcile(d.Reconciler)
				time.Sleep(2 * DefaultMinAge)
			}
			if n.exists("10.0.0.2") {
				t.Error("not released after current lists")
			}
		}))
	}
}

// A list from centuries ago, such as a zero time after formatting and parsing, supports no
// release, however the clock is set.
func TestHazard62ListOfCenturiesAgo(t *testing.T) {
	for _, date := range []time.Time{time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(1750, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(0, 0).Add(-1 << 62)} {
		t.Run(date.String(), inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), 24*time.Hour)
			d := newDatedSource(t, n)
			d.written = date
			for _, step := range []time.Duration{0, time.Hour, -time.Hour, 200 * 365 * 24 * time.Hour} {
				d.step = step
				n.checkReasons(n.reconcile(d.Reconciler), map[string]Reason{"10.0.0.2": StaleAnswer})
				time.Sleep(10 * time.Minute)
			}
		}))
	}
}
