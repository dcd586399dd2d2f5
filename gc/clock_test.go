// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The clock forgets finished pods that are not listed any more if a source listed Kubernetes pods, and
// entries that are not proven if a source listed entries.
func TestClockForgets(t *testing.T) {
	job := podsource.Pod{NamespacedName: named("job"), Finished: true}
	entry := podsource.Pod{ContainerIDs: []string{"e"}, Unproven: true}
	const forgotten = 10
	var c clock
	for i, row := range []struct {
		reason     string
		look       []podsource.Answer
		job, entry time.Duration // the time at which each was first seen
	}{
		{"both are listed", []podsource.Answer{kubeletAnswer(job), cacheAnswer([]podsource.Pod{entry})}, 1, 1},
		{"no source lists any", []podsource.Answer{criAnswer(), netnsAnswer()}, 1, 1},
		{"only the cache answers", []podsource.Answer{criAnswer(), cacheAnswer(nil), netnsAnswer()}, 1, forgotten},
		{"kubelet answers, too", []podsource.Answer{kubeletAnswer(), netnsAnswer()}, forgotten, forgotten},
	} {
		at, end := reading{mono: time.Duration(i) + 1}, reading{mono: forgotten}
		c.seePods(at, row.look)
		job, entry := end.mono-c.finishedFor(end, &job), end.mono-c.finishedFor(end, &entry)
		if job != row.job || entry != row.entry {
			t.Errorf("%s: first seen at %v and %v, want %v and %v", row.reason, job, entry, row.job, row.entry)
		}
	}
}

// What the clock showed after a sleep was shown before a later step: it is of this boot.
func TestClockKnowsOfSleep(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var c clock
	c.observe(reading{wall: start, mono: time.Minute, boot: time.Minute})
	c.observe(reading{wall: start.Add(366 * 24 * time.Hour), mono: 2 * time.Minute, boot: time.Hour})
	if c.beforeBoot(start.Add(58*time.Minute)) || !c.beforeBoot(start.Add(60*time.Minute)) ||
		c.beforeBoot(c.steps.Left) || c.beforeBoot(c.last.wall.Add(-time.Hour-bootTolerance)) {
		t.Error("the clock showed 59 minutes after the first reading, and then a year later")
	}
}

// A timestamp is trusted if it is not from the future, from before a step, or from before the
// boot. A start is compared less the furthest that the clock was set below an earlier setting.
func TestClockKnowsItsSteps(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const hour, minute, ms = time.Hour, time.Minute, time.Millisecond
	var c clock
	at := func(wall, mono time.Duration) reading {
		return reading{wall: epoch.Add(wall), mono: mono, boot: 10*hour + mono}
	}
	start := epoch.Add(20*hour + 1)
	made := func(before time.Duration) bool {
		return c.madeSince(&hostlocal.Reservation{ReservedAt: start.Add(-before - timestampGranularity - 2*clockTolerance)}, start)
	}
	for _, row := range []struct {
		reason       string
		now          reading
		back         time.Duration
		trustedSince time.Duration
	}{
		{"the first reading", at(0, 0), 0, -10 * hour},
		{"no step", at(hour, hour), 0, -10 * hour},
		{"forward", at(3*hour, 2*hour), 0, 3 * hour},
		{"back to the first setting", at(3*hour, 3*hour), hour, 4*hour + 100*ms},
		{"back below it", at(4*hour-minute, 4*hour), hour + minute, 4*hour + 100*ms},
		{"forward again", at(5*hour, 5*hour), hour + minute, 5 * hour},
		{"back by less", at(6*hour-minute, 6*hour), hour + minute, 6*hour + 100*ms},
		{"back within the tolerance", at(7*hour-minute-100*ms, 7*hour), hour + minute + 100*ms, 6*hour + 100*ms},
	} {
		c.observe(row.now)
		since, isBoot := epoch.Add(row.trustedSince), row.trustedSince < 0
		trusted := func(after time.Duration) bool { return c.trusted(row.now, since.Add(after)) }
		if row.now.wall.After(since) && (!trusted(1) || trusted(-1) || trusted(0) == isBoot) {
			t.Errorf("%s: timestamps are not trusted from %v on", row.reason, row.trustedSince)
		}
		if !made(row.back) || made(row.back+1) {
			t.Errorf("%s: starts are compared less %v, want %v", row.reason, c.steps.Back, row.back)
		}
	}
	now := c.last
	if c.trusted(now, now.wall.Add(1)) || new(clock).sinceSteps(now, time.Time{}) {
		t.Error("a timestamp of the future or none is trusted")
	}
	c.observe(reading{wall: now.wall, mono: now.mono + hour}) // back, and the boot is not known
	if want := now.wall.Add(hour + 2*clockTolerance); !c.steps.Left.Equal(want) {
		t.Errorf("the clock showed %v before the step, want %v", c.steps.Left, want)
	}
}

// The date of a list is exact if it has a reading of the monotonic clock. One from outside counts
// if it is neither in the future nor from before a step or centuries ago (hazard 62).
func TestClockPlacesDates(t *testing.T) {
	const minute, years = time.Minute, 10 * 365 * 24 * time.Hour
	base := time.Now()
	now := reading{wall: base.Round(0), mono: time.Hour, now: base}
	stepped := clock{steps: steps{TrustedSince: now.wall.Add(-minute)}}
	for _, row := range []struct {
		reason string
		clock  clock
		date   time.Time
		want   time.Duration
	}{
		{"no date: the time of asking", stepped, time.Time{}, now.mono},
		{"a minute ago, since the step", stepped, now.wall.Add(-minute), now.mono - minute},
		{"before the step", stepped, now.wall.Add(-minute - 1), always},
		{"years ago, by a person", clock{}, now.wall.Add(-years), now.mono - years},
		{"centuries ago", clock{}, now.wall.Add(-1 << 63), always},
		{"a zero time after formatting and parsing", clock{}, time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), always},
		{"in the future", stepped, now.wall.Add(clockTolerance + 1), always},
		{"in the future, within the tolerance", stepped, now.wall.Add(clockTolerance), now.mono},
		{"of this process, before the step", stepped, base.Add(-10 * minute), now.mono - 10*minute},
		{"of this process, after the question", stepped, base.Add(minute), now.mono},
	} {
		if got := row.clock.asOf(now, now, &podsource.Answer{AsOf: row.date}); got != row.want {
			t.Errorf("%s: %v, want %v", row.reason, got, row.want)
		}
	}
	old := podsource.Answer{AsOf: base.Add(-minute)}
	if got := new(clock).asOf(reading{wall: now.wall, mono: now.mono}, now, &old); got != now.mono-minute {
		t.Errorf("compared with a time that has only the wall clock's: %v", got)
	}
	before := &candidate{&hostlocal.Reservation{ReservedAt: stepped.steps.TrustedSince.Add(-1)}, 0}
	if stepped.listedSince(now, &declaration{Answer: podsource.Answer{AsOf: base}}, before) {
		t.Error("a list is of after a reservation whose time is from before the step")
	}
}

// Steps of the clock are noticed from New on, not only from the first pass on: a reservation
// made in between is not older than that.
func TestHazard19TheClockIsWatchedFromTheStart(t *testing.T) {
	n := newNode(t)
	r, err := New(n.store, []string{network1}, podsource.Static{other}, Options{})
	must(t, err)
	if r.clock.last.wall.IsZero() {
		t.Error("New did not read the clocks")
	}
	now := r.now()
	if later := r.now(); later.mono < now.mono || now.mono <= 0 || now.wall != now.wall.Round(0) {
		t.Errorf("two readings: %v, %v, want a monotonic clock, and a wall clock without it", now, later)
	}
}
