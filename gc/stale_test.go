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
		{"... in any order", []podsource.Answer{asOf(kubeletAnswer(), -hour), criAnswer()}, hour, TooYoung},
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
				report := n.pass(answers(append(c.members, podsource.Answer{Pods: []podsource.Pod{sandbox("1", hex64("proxy"))}})...), Options{})
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

// A list was written before a step of the clock, and this process did not see it before the
// step. Its date says nothing until it changes.
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
			time.Sleep(time.Second)
			d.step = c.step
			time.Sleep(c.after)
			for range 5 { // the date may be as old as the last pass and two intervals
				n.checkReasons(n.reconcile(d.Reconciler), map[string]Reason{"10.0.0.2": StaleAnswer})
				time.Sleep(DefaultMinAge)
			}
			// It is written again, and the reservation has been seen unnamed for long enough.
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

// After a step back, until the clock has caught up, any date may be from before the step. It
// counts from when the source first returned it.
func TestHazard75DateAfterAStepBack(t *testing.T) {
	const minute = time.Minute
	for _, c := range []struct {
		reason string
		write  func(d *datedSource, pass int)
		want   time.Duration // real time until a reservation made at the step is released
	}{
		{"its list is always current", func(d *datedSource, _ int) { d.written = d.wall() }, DefaultMinAge + 2*DefaultInterval + minute},
		{"written again before every other pass", func(d *datedSource, pass int) {
			if pass%2 == 1 {
				d.written = d.wall()
			}
		}, DefaultMinAge + 2*DefaultInterval + 2*minute},
		{"its list is always ten minutes old", func(d *datedSource, _ int) { d.written = d.wall().Add(-10 * minute) }, DefaultMinAge + 2*DefaultInterval + minute},
		{"its list is always half an hour old", func(d *datedSource, _ int) { d.written = d.wall().Add(-30 * minute) }, DefaultMinAge + 30*minute},
		{"never written again", func(*datedSource, int) {}, 0},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			d := newDatedSource(t, n)
			d.written = d.wall()
			n.reconcile(d.Reconciler)
			time.Sleep(minute)
			d.step = -24 * time.Hour
			n.fileAt(network1, "10.0.0.2", hex64("web")+"\r\neth0", d.wall())
			begun := time.Now()
			for pass := range 60 {
				c.write(d, pass)
				report := n.reconcile(d.Reconciler)
				if age := time.Since(begun); report.Counts()[Released] > 0 {
					if age < c.want || c.want == 0 || age > c.want+2*minute {
						t.Errorf("released after %v, want %v", age, c.want)
					}
					return
				}
				time.Sleep(minute)
			}
			if c.want != 0 {
				t.Errorf("not released in an hour, want it after %v", c.want)
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

// The clock places dates on the monotonic clock.
func TestClockPlacesDates(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d, step time.Duration) reading { return reading{wall: epoch.Add(d + step), mono: d} }
	var c clock
	c.observe(at(0, 0))
	give := func(now reading, name string, date time.Time) {
		remember(&c, now, nil, podsource.Answer{Source: name, AsOf: date})
	}
	give(at(time.Minute, 0), "a", epoch.Add(30*time.Second))
	const step = -time.Hour
	now := at(2*time.Minute, step)
	c.observe(now)
	placed := func(date time.Time) time.Duration {
		return c.asOf(now, now, 0, &podsource.Answer{Source: "a", AsOf: date}, time.Second)
	}
	for _, row := range []struct {
		reason string
		place  int
		source string
		date   time.Time
		want   time.Duration
	}{
		{"no date: the time of asking", 0, "a", time.Time{}, now.mono},
		{"in the future", 0, "a", now.wall.Add(time.Second), always},
		{"the same as before the step", 0, "a", epoch.Add(30 * time.Second), always}, // it is in the future now
		{"another source", 0, "b", now.wall, always},
		{"another place", 1, "a", now.wall, always},
	} {
		if got := c.asOf(now, now, row.place, &podsource.Answer{Source: row.source, AsOf: row.date}, 0); got != row.want {
			t.Errorf("%s: %v, want %v", row.reason, got, row.want)
		}
	}
	if got := placed(now.wall); got == always || got > time.Minute {
		t.Errorf("another: %v, want no later than the answer before", got)
	}
	// A date from before a step forward keeps its place.
	c = clock{}
	c.observe(at(0, 0))
	give(at(time.Minute, 0), "a", epoch.Add(30*time.Second))
	now = at(2*time.Minute, time.Hour)
	c.observe(now)
	if got := placed(epoch.Add(30 * time.Second)); got != 30*time.Second {
		t.Errorf("the same as before a step forward: %v, want 30s", got)
	}
	give(now, "a", epoch.Add(30*time.Second))
	if now = at(3*time.Minute, time.Hour); placed(epoch.Add(30*time.Second)) != 30*time.Second {
		t.Error("the same date again has another place")
	}
	for _, since := range []time.Duration{time.Minute, 10 * time.Second, 0} {
		if got := placed(now.wall.Add(-since)); got != now.mono-since {
			t.Errorf("a date %v ago, since the step: %v", since, got)
		}
	}
	if got := placed(now.wall.Add(clockTolerance)); got != now.mono {
		t.Errorf("a date in the future, within the tolerance: %v, want now", got)
	}
	const years = 10 * 365 * 24 * time.Hour // a list that a person wrote
	if got := new(clock).asOf(now, now, 0, &podsource.Answer{AsOf: now.wall.Add(-years)}, 0); got != now.mono-years {
		t.Errorf("a date of years ago, when the clock was not set: %v, want it where it was", got)
	}
}

// A date that was known before a step of the clock forward keeps its place, so the answer does not
// become stale, also where another source answers before the dated one.
func TestHazard75DatedSourceBesideAnother(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), 24*time.Hour)
		c := &clocks{uptime: 30 * 24 * time.Hour}
		var written time.Time
		r := newReconciler(t, n.store, []string{network1}, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			a := criAnswer()
			a.Source, a.AsOf = "file", written
			return podsource.Answer{Parts: []podsource.Answer{criAnswer(sandbox("1", hex64("web"))), a}}, nil
		}), Options{}, c)
		written = c.wall()
		n.reconcile(r) // it is in use
		n.reserve("10.0.0.3", hex64("dead"), 24*time.Hour)
		c.step = time.Hour
		for range 2 {
			for _, e := range n.reconcile(r).Reservations {
				if e.Reason == StaleAnswer {
					t.Errorf("%v: its date was known before the step", e.IP)
				}
			}
		}
	})(t)
}
