// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

func TestResult(t *testing.T) {
	asked := func(r gc.Report) gc.Report {
		r.SourceDuration = time.Millisecond
		return r
	}
	live, unanswered := entry(gc.AddressClaimed, 0), entry(gc.NoAnswer, 0)
	for _, row := range []struct {
		reason string
		pass   pass
		want   result
	}{
		{"no error, nothing reserved", pass{reportOf(), nil}, ok},
		{"no error, all in use", pass{asked(reportOf(live)), nil}, ok},
		{"the source failed", pass{asked(reportOf(unanswered, unanswered)), errAway}, refused},
		{"the source failed faster than the clock ticks", pass{reportOf(unanswered), errAway}, refused},
		{"the source failed, and an owner could not be read before", pass{asked(reportOf(unanswered)), errors.Join(errAway, errAway)}, refused},
		{"the source sees nobody", pass{asked(reportOf(entry(gc.EmptyView, 0))), fmt.Errorf("pass: %w", gc.ErrNoPods)}, refused},
		{"the source sees nobody, and nothing is reserved", pass{reportOf(), fmt.Errorf("pass: %w", gc.ErrNoPods)}, refused},
		{"the source sees nobody, and somebody wrapped the error without %w", pass{reportOf(entry(gc.EmptyView, 0)), errAway}, refused},
		{"the source failed, and nothing is reserved", pass{asked(reportOf()), errAway}, refused},
		{"the folder could not be listed, so the source was not asked", pass{reportOf(), errAway}, failed},
		{"the context ended before the source was asked", pass{reportOf(entry(gc.NotJudged, 0)), errAway}, failed},
		{"a release failed", pass{asked(reportOf(live, entry(gc.ReleaseFailed, 0))), errAway}, failed},
		{"an unreadable owner among the live", pass{asked(reportOf(live, entry(gc.OwnerUnreadable, 0))), errAway}, failed},
	} {
		if got := resultOf(&row.pass.report, row.pass.err); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}

// Each reason there is counts as a kept leak, or does not, or tells nothing.
func TestOldestKeptLeakByReason(t *testing.T) {
	const (
		counts = "counts"
		not    = "does not count"
		blind  = "nothing was judged"
	)
	want := map[gc.Reason]string{
		gc.ContainerLive: not, gc.AddressClaimed: not, gc.SiblingInUse: not, // live
		gc.OtherContainer: not, gc.TwoPods: not, // a live pod claims the address
		gc.ReleasedLeak: not, gc.ReleasedEmpty: not, gc.FileGone: not, // not there any more
		gc.FileChanged: not, // what is there now is new
		gc.TimeInDoubt: not, // of no age

		gc.Unowned: counts, gc.EmptyOwner: counts, gc.NotTried: counts, gc.ReleaseFailed: counts, // surely leaks
		gc.TooYoung: counts, gc.PodStarting: counts, gc.PodStartUnknown: counts, // perhaps not yet named
		gc.OwnerMalformed: counts, gc.OwnerUnreadable: counts, // nobody can tell
		gc.OwnerInConflict: counts, gc.SiblingUnreadable: counts, gc.SiblingChanged: counts, // by another's fault

		gc.NotJudged: blind, gc.NoAnswer: blind, gc.EmptyView: blind,
	}
	got := make(map[gc.Reason]string)
	for _, reason := range reasons() {
		report := reportOf(entry(gc.ContainerLive, 9*time.Hour), entry(reason, time.Hour))
		switch age, known := oldestKeptLeak(&report); {
		case !known:
			got[reason] = blind
		case age == time.Hour:
			got[reason] = counts
		case age == 0:
			got[reason] = not
		default:
			t.Errorf("%v: age %v", reason, age)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestOldestKeptLeakAge(t *testing.T) {
	for _, row := range []struct {
		reason  string
		entries []gc.Entry
		want    time.Duration
	}{
		{"nothing is reserved", nil, 0},
		{"the oldest of several, not the last", []gc.Entry{entry(gc.TooYoung, time.Minute), entry(gc.Unowned, time.Hour), entry(gc.NotTried, time.Second)}, time.Hour},
		{"a time that nobody knows is not 1970", []gc.Entry{entry(gc.OwnerUnreadable, 0)}, 0},
		{"a time in the future is no negative age", []gc.Entry{entry(gc.OwnerMalformed, -time.Hour)}, 0},
		{"a hand-made entry without a reservation", []gc.Entry{{Reason: gc.Unowned}}, 0},
	} {
		report := reportOf(row.entries...)
		if got, known := oldestKeptLeak(&report); got != row.want || !known {
			t.Errorf("%s: got %v, %v; want %v", row.reason, got, known, row.want)
		}
	}
}
