// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests R4: how the claim of a starting pod ends.

// First end: a source names containers of the form and network, the age exceeds StartingFor,
// and this process has seen the same file unnamed in every pass for L.
func TestStartingEndsByASourceThatNamesContainers(t *testing.T) {
	const l, startingFor = DefaultMinAge, DefaultStartingFor
	withNames := func(names ...podsource.Names) podsource.Answer {
		a := criAnswer()
		a.Names = names
		return a
	}
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			reason  string
			age     time.Duration // at the first pass
			seenFor time.Duration // at the second
			runtime podsource.Answer
			opts    Options
			want    Reason // in the second
		}{
			{"old, and seen for exactly L", old, l, criAnswer(), Options{}, ReleasedLeak},
			{"old, and seen for a nanosecond less", old, l - 1, criAnswer(), Options{}, PodStartUnknown},
			{"exactly StartingFor old does not exceed it", startingFor - l, l, criAnswer(), Options{}, PodStartUnknown},
			{"a nanosecond older", startingFor - l + 1, l, criAnswer(), Options{}, ReleasedLeak},
			{"the caller sets more", time.Hour - l, l, criAnswer(), Options{StartingFor: time.Hour}, PodStartUnknown},
			{"... and a nanosecond older than that", time.Hour - l + 1, l, criAnswer(), Options{StartingFor: time.Hour}, ReleasedLeak},
			{"L and StartingFor follow T", 20*time.Minute - 13*time.Minute, 13 * time.Minute, criAnswer(), Options{RuntimeRequestTimeout: 5 * time.Minute}, PodStartUnknown},
			{"... and a nanosecond older", 20*time.Minute - 13*time.Minute + 1, 13 * time.Minute, criAnswer(), Options{RuntimeRequestTimeout: 5 * time.Minute}, ReleasedLeak},
			{"no source names containers", old, 24 * time.Hour, withNames(), Options{}, StartingNoEnd},
			{"only those of another form", old, 24 * time.Hour, withNames(podsource.Names{Form: "x-" + podsource.Hex64, Lag: podsource.RuntimeLag}), Options{}, StartingNoEnd},
			{"only those in another network", old, 24 * time.Hour, withNames(podsource.Names{Form: podsource.Hex64, Networks: []string{"second"}, Lag: podsource.RuntimeLag}), Options{}, StartingNoEnd},
			{"in its network", old, l, withNames(podsource.Names{Form: podsource.AnyForm, Networks: []string{"second", network1}}), Options{}, ReleasedLeak},
			{"with a lag of half a day", old, 11 * time.Hour, withNames(podsource.Names{Form: podsource.Hex64, Lag: 12 * time.Hour}), Options{}, PodStartUnknown},
			{"... which is over", old, 11*time.Hour + 1, withNames(podsource.Names{Form: podsource.Hex64, Lag: 12 * time.Hour}), Options{}, ReleasedLeak},
		} {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), c.age)
			r := n.reconciler(answers(kubeletAnswer(starts()), c.runtime), c.opts)
			first := n.reconcile(r)
			if got := first.Reservations[0].Verdict; got != Starting && got != Young {
				t.Errorf("%s: the first pass says %s", c.reason, got)
			}
			time.Sleep(c.seenFor)
			second := n.reconcile(r)
			if got := second.Reservations[0].Reason; got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		}
	})
}

// "The same file in every pass": the time of a file that was named in between, or replaced,
// starts over.
func TestStartingCountsAnewWhatWasNotSeenUnnamed(t *testing.T) {
	for _, c := range []struct {
		reason  string
		between func(n *node)
		second  []podsource.Answer
	}{
		{"named by its container in between", func(*node) {}, []podsource.Answer{kubeletAnswer(starts()), criAnswer(sandbox("1", hex64("web")))}},
		{"named by its address in between", func(*node) {}, []podsource.Answer{kubeletAnswer(starts(), podsource.Pod{UID: "1", IPs: ips("10.0.0.2")}), criAnswer()}},
		{"in conflict in between", func(*node) {}, []podsource.Answer{kubeletAnswer(starts()), criAnswer(sandbox("1", hex64("db"), "10.0.0.2"))}},
		{"written again in place", func(n *node) { n.reserve("10.0.0.2", hex64("web"), old) }, []podsource.Answer{kubeletAnswer(starts()), criAnswer()}},
		{"replaced", func(n *node) { n.replace("10.0.0.2", hex64("web"), old) }, []podsource.Answer{kubeletAnswer(starts()), criAnswer()}},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), old)
			unnamed := []podsource.Answer{kubeletAnswer(starts()), criAnswer()}
			r := n.reconciler(inTurn(unnamed, c.second, unnamed), Options{})
			n.reconcile(r)
			time.Sleep(DefaultMinAge / 2)
			c.between(n)
			n.reconcile(r)
			time.Sleep(DefaultMinAge - 1)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Starting})
			time.Sleep(DefaultMinAge)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		}))
	}
}

// U2: an answer from before a reservation was first seen ends no claim on it.
func TestStartingIsNotEndedByAnAnswerFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("leaked"), 24*time.Hour)
		asOf := time.Now().Add(-time.Second) // before the first pass
		r := n.reconciler(podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			runtime := criAnswer()
			runtime.AsOf = asOf
			return podsource.Answer{Parts: []podsource.Answer{kubeletAnswer(starts()), runtime}}, nil
		}), Options{})
		report := n.reconcile(r)
		n.check(report, map[string]Verdict{"10.0.0.2": Starting})
		if report.NextCheck.IsZero() {
			t.Error("the report has no next check; a later answer would end the claim")
		}
		time.Sleep(12 * time.Hour)
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Starting})
		asOf = time.Now()
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
	})
}

// Nor does such an answer end a claim in a pass of two looks.
func TestStartingBesideTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.network("second")
		n.reserve("10.0.0.2", hex64("seen"), old)
		n.reserveIn("second", "10.9.0.2", hex64("leaked"), old) // only the runtime names it, with its lag
		record, asked := recordAnswer([]string{network1}), 0
		r := n.reconcilerOf([]string{network1, "second"}, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			if asked++; asked > 1 {
				record.AsOf = record.AsOf.Add(time.Second)
			}
			return podsource.Answer{Parts: []podsource.Answer{netnsAnswer(), record, criAnswer(), kubeletAnswer(starts())}}, nil
		}), Options{DryRun: true})
		record.AsOf = time.Now().Add(-time.Second)
		if report := n.reconcile(r); report.Looks != 1 || report.Reservations[0].Verdict != Starting {
			t.Errorf("when it was first seen: %d looks, %s", report.Looks, report.Reservations[0].Reason)
		}
		time.Sleep(time.Minute)
		n.reserve("10.0.0.3", hex64("new"), old) // after the record's date
		record.AsOf = time.Now().Add(-10 * time.Second)
		report := n.reconcile(r)
		n.checkReasons(report, map[string]Reason{"10.0.0.2": Unowned, "10.0.0.3": PodStartUnknown, "second/10.9.0.2": PodStartUnknown})
		if report.Looks != 2 {
			t.Errorf("asked %d times, want twice", report.Looks)
		}
	})
}

// "For L" counts up to the time of the oldest answer, like every age (R5): by a list that is
// written once nothing is unnamed for L.
func TestStartingIsSeenOnlyUpToAsOf(t *testing.T) {
	for _, c := range []struct {
		reason  string
		uptime  time.Duration
		runtime bool
	}{
		{"first end", 30 * 24 * time.Hour, true},
		{"third end, by the boot", time.Minute, false},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), 24*time.Hour)
			begun := time.Now()
			asOf := begun.Add(time.Minute)
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				kubelet := kubeletAnswer(starts())
				kubelet.AsOf = asOf
				if asOf.After(time.Now()) {
					kubelet.AsOf = time.Time{}
				}
				parts := []podsource.Answer{kubelet}
				if c.runtime {
					runtime := criAnswer()
					runtime.AsOf = kubelet.AsOf
					parts = append(parts, runtime)
				}
				return podsource.Answer{Parts: parts}, nil
			})
			r := newReconciler(t, n.store, []string{network1}, source, Options{}, &clocks{uptime: c.uptime})
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Starting})
			time.Sleep(2 * DefaultMinAge) // and the list was not written since
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Starting})
			asOf = begun.Add(DefaultMinAge)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		}))
	}
}

// Second end: a source sees ADDs in flight, one without a lag names containers of the form
// and network, and the reservation is older than MinAge and unowned in two looks.
func TestStartingEndsByTwoLooks(t *testing.T) {
	addsOnly := netnsAnswer()
	addsOnly.SeesAddresses = false
	cache := cacheAnswer(nil, stale(network1, hex64("leaked")))
	for _, c := range []struct {
		reason  string
		age     time.Duration
		members []podsource.Answer
		opts    Options
		want    Verdict
		looks   int
	}{
		{"a record, and a source that sees ADDs", 7 * time.Minute, []podsource.Answer{addsOnly, recordAnswer([]string{network1})}, Options{}, Released, 2},
		{"younger than MinAge", 7*time.Minute - 2, []podsource.Answer{addsOnly, recordAnswer([]string{network1})}, Options{}, Young, 1},
		{"the record is from before it was first seen", old, []podsource.Answer{netnsAnswer(), asOf(recordAnswer([]string{network1}), -time.Second)}, Options{}, Starting, 1},
		{"the record is of another network", old, []podsource.Answer{addsOnly, recordAnswer([]string{"second"})}, Options{}, Starting, 1},
		{"no source sees ADDs", old, []podsource.Answer{recordAnswer([]string{network1})}, Options{}, Starting, 1},
		{"a runtime has a lag", old, []podsource.Answer{addsOnly, criAnswer()}, Options{}, Starting, 1},
		{"a cache that passed its check", old, []podsource.Answer{netnsAnswer(), cache}, Options{}, Released, 2},
		{"a cache that can't be checked", old, []podsource.Answer{addsOnly, cache}, Options{}, Starting, 1},
		{"MinAge is set higher", 20 * time.Minute, []podsource.Answer{addsOnly, recordAnswer([]string{network1})}, Options{MinAge: 21 * time.Minute}, Young, 1},
		{"MinAge is below L, and no cache is asked", 6 * time.Minute, []podsource.Answer{addsOnly, recordAnswer([]string{network1})}, Options{MinAge: time.Minute}, Young, 2},
		{"MinAge is below L, with all sources that this requires", time.Minute, []podsource.Answer{netnsAnswer(), cache}, Options{MinAge: time.Minute}, Released, 2},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), c.age)
			s := inTurn(append(slices.Clone(c.members), kubeletAnswer(starts())))
			report := n.pass(s, c.opts)
			n.check(report, map[string]Verdict{"10.0.0.2": c.want})
			if report.Looks != c.looks || len(s.times()) != c.looks || len(report.Sources) != len(c.members)+1 {
				t.Errorf("asked %d times, and the report says %d, of %d sources; want %d", len(s.times()), report.Looks, len(report.Sources), c.looks)
			}
			if at := s.times(); len(at) == 2 && at[1].Sub(at[0]) < time.Second {
				t.Errorf("the second look came %v after the first", at[1].Sub(at[0]))
			}
		}))
	}
}

// Both looks must agree.
func TestStartingEndsByTwoLooksOnlyIfBothSaySo(t *testing.T) {
	record, adds, kubelet := recordAnswer([]string{network1}), netnsAnswer(), kubeletAnswer(starts())
	noAdds, noNames := adds, record
	noAdds.SeesADDs = false
	noNames.Names = nil
	for _, c := range []struct {
		reason        string
		first, second []podsource.Answer
		want          Verdict
	}{
		{"unowned in both", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{adds, record, kubelet}, Released},
		{"the second finds its ADD", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{netnsAnswer(adding(hex64("web"))), record, kubelet}, InUse},
		{"only the first finds its ADD, since there is no process between two plugins", []podsource.Answer{netnsAnswer(adding(hex64("web"))), record, kubelet},
			[]podsource.Answer{adds, record, kubelet}, InUse},
		{"the second finds its address", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{netnsAnswer(configured("10.0.0.2")), record, kubelet}, InUse},
		{"the second finds it in the record", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{adds, recordAnswer([]string{network1}, hex64("web")), kubelet}, InUse},
		{"the second does not see ADDs", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{noAdds, record, kubelet}, Starting},
		{"the second names no containers", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{adds, noNames, kubelet}, Starting},
		{"the second has no record at all", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{adds, kubelet}, Starting},
		{"the second has another source, with a date", []podsource.Answer{adds, record, kubelet}, []podsource.Answer{adds, record, kubelet, asOf(criAnswer(), 0)}, Released},
		{"no pod is starting in the first, so there is no second", []podsource.Answer{adds, record, kubeletAnswer()}, []podsource.Answer{adds, noNames, kubelet}, Released},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), old)
			n.reserve("10.0.0.9", hex64("db"), old) // requires a second look in any case
			report := n.pass(inTurn(c.first, c.second), Options{DryRun: true})
			got := report.Reservations[0].Verdict
			if got == Leaked {
				got = Released
			}
			if got != c.want {
				t.Errorf("got %s (%s), want %s", got, report.Reservations[0].Reason, c.want)
			}
		}))
	}
}

// Third end: a timestamp from before this boot, and seen unnamed for L.
func TestStartingEndsByTheBoot(t *testing.T) {
	const uptime = 10 * time.Minute
	for _, c := range []struct {
		reason  string
		age     time.Duration // when the reconciler is made
		content string
		seenFor time.Duration
		step    time.Duration // of the clock, after the first pass
		want    Reason
	}{
		{"made before the boot, seen for L", uptime + 2*time.Second, hex64("web"), DefaultMinAge, 0, ReleasedLeak},
		{"seen for less", uptime + 2*time.Second, hex64("web"), DefaultMinAge - 1, 0, PodStartUnknown},
		{"made since the boot", uptime - time.Second, hex64("web"), 24 * time.Hour, 0, StartingNoEnd},
		{"made in the second of the boot", uptime, hex64("web"), 24 * time.Hour, 0, StartingNoEnd},
		{"an empty file", uptime + 2*time.Second, "", DefaultMinAge, 0, ReleasedEmpty},
		{"before the boot only because the clock was set forward since", uptime - time.Minute, hex64("web"), 24 * time.Hour, time.Hour, StartingNoEnd},
		{"from 1970, where computers without a clock start", 50 * 365 * 24 * time.Hour, hex64("web"), DefaultMinAge, 0, ReleasedLeak},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.file("10.0.0.2", c.content, c.age)
			clk := &clocks{uptime: uptime}
			r := newReconciler(t, n.store, []string{network1}, answers(kubeletAnswer(starts())), Options{}, clk)
			n.reconcile(r)
			clk.step = c.step
			time.Sleep(c.seenFor)
			n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": c.want})
		}))
	}
	t.Run("without a known boot there is no such end", inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), 365*24*time.Hour)
		r := n.reconciler(answers(kubeletAnswer(starts())), Options{})
		c := &clocks{base: time.Now()}
		r.now, r.clock = func() reading { now := c.now(); now.boot = 0; return now }, clock{}
		n.reconcile(r)
		time.Sleep(24 * time.Hour)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": StartingNoEnd})
	}))
}
