// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R4 and R5: however the clock is set, no age is overstated, and no reservation made after
// a pod's start counts as older than the pod. In the end every age grows.
func TestHazard19AgesAreNeverOverstated(t *testing.T) {
	for seed := range uint64(1000) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var offset time.Duration // of the wall clock
		now := time.Duration(0)  // real time, which the monotonic clock shows
		read := func() reading { return reading{wall: epoch.Add(now + offset), mono: now} }
		pick := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

		var all []hostlocal.Reservation // each in a network of its own
		var made []time.Duration        // when each was made
		reserve := func() {             // not before the first reading: A4 excludes that
			made = append(made, now)
			all = append(all, hostlocal.Reservation{Network: fmt.Sprintf("%02d", len(all)), ReservedAt: epoch.Add(now + offset), Owner: hostlocal.Empty})
		}
		var c clock
		c.observe(read())
		for range 12 {
			now += pick(10 * time.Minute)
			reserve()
			now += pick(10 * time.Minute)
			switch rnd.IntN(4) {
			case 0:
				offset -= pick(2 * time.Hour)
			case 1:
				offset += pick(365 * 24 * time.Hour)
			}
			now += pick(10 * time.Minute)
			reserve()
			at := read()
			c.observe(at)
			for i, a := range c.sees(at, all) {
				age, sure := c.age(at, &a)
				if real := now - made[i]; age > real {
					t.Fatalf("seed %d: a reservation that is %v old counts as %v old (by its timestamp: %t)", seed, real, age, sure)
				}
				// Take its time as a pod's start; all later reservations may be the pod's.
				if !startKnown(at, a.ReservedAt) {
					continue
				}
				for j := range all[i:] {
					if !c.madeSince(&all[i+j], a.ReservedAt) {
						t.Fatalf("seed %d: a reservation from %v after a start counts as older than the start", seed, made[i+j]-made[i])
					}
				}
			}
		}
		// Each reservation is old after the clock has not been set for long enough.
		now += time.Hour
		at := read()
		c.observe(at)
		for _, r := range c.sees(at, all) {
			if age, _ := c.age(at, &r); age < time.Hour-clockTolerance {
				t.Fatalf("seed %d: an hour after the last step a reservation counts as %v old", seed, age)
			}
		}
	}
}

// The clock forgets files that are not listed any more or were replaced, and, if a source
// listed Kubernetes pods, finished pods that it did not list; and entries that a cache has not any more.
func TestClockForgets(t *testing.T) {
	at := func(d time.Duration) reading { return reading{wall: time.Unix(0, 0).Add(d), mono: d} }
	reserved := func(addresses ...string) (rs []hostlocal.Reservation) {
		for _, ip := range addresses {
			rs = append(rs, owned(network1, ip, "leaked"))
		}
		return rs
	}
	list := func(kind podsource.Kind, names ...string) []declaration {
		a := podsource.Answer{Names: kind}
		for _, name := range names {
			a.Pods = append(a.Pods, podsource.Pod{NamespacedName: named(name), Finished: true})
		}
		return []declaration{{Answer: a}, {Answer: netnsAnswer()}}
	}
	var c clock
	c.sees(at(0), reserved("10.0.0.1", "10.0.0.2", "10.0.0.3"))
	c.seePods(at(0), list(podsource.KubernetesPods, "a", "b"))
	second := reserved("10.0.0.1", "10.0.0.2", "10.0.0.99")
	second[1].ContainerID = "another"
	seen := c.sees(at(time.Minute), second)
	c.seePods(at(time.Minute), list(podsource.SandboxContainers, "c"))
	for i, want := range []time.Duration{0, time.Minute, time.Minute} {
		if got := seen[i].seen; got != want {
			t.Errorf("%s was first seen at %v, want %v", second[i].IP, got, want)
		}
	}
	for _, r := range c.sees(at(time.Hour), reserved("10.0.0.2", "10.0.0.3")) {
		if r.seen != time.Hour {
			t.Errorf("%s was first seen at %v, want now", r.IP, r.seen)
		}
	}
	for i, want := range []map[string]time.Duration{{"a": time.Hour, "b": time.Hour, "c": 59 * time.Minute}, {"a": 0, "b": time.Hour, "c": 0}} {
		for name, want := range want {
			if got := c.finishedFor(at(time.Hour), &podsource.Pod{NamespacedName: named(name), Finished: true}); got != want {
				t.Errorf("pod %s has been finished for %v, want %v", name, got, want)
			}
		}
		if i == 0 {
			c.seePods(at(2*time.Minute), list(podsource.KubernetesPods, "b"))
		}
	}
	entry := podsource.Pod{ContainerIDs: []string{"e"}, Unproven: true}
	cached, none := cacheAnswer([]podsource.Pod{entry}), cacheAnswer(nil)
	for i, look := range [][]declaration{{{Answer: cached}}, list(podsource.KubernetesPods), {{Answer: none}, {}}} {
		c.seePods(at(time.Hour), look)
		if got, want := c.finishedFor(at(2*time.Hour), &entry), []time.Duration{time.Hour, time.Hour, 0}[i]; got != want {
			t.Errorf("look %d: the entry was first seen %v ago, want %v", i, got, want)
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

// A wall clock that runs a little fast or slow has no step, and makes no age greater.
func TestClockTakesSmallGainsOff(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const little = 100 * time.Millisecond // clockTolerance
	for gain, want := range map[time.Duration]time.Duration{little: time.Minute, -little: time.Minute - little} {
		var c clock
		c.observe(reading{wall: epoch, boot: time.Hour})
		at := reading{wall: epoch.Add(time.Minute + gain), mono: time.Minute, boot: time.Hour + time.Minute}
		c.observe(at)
		age, byTimestamp := c.age(at, &candidate{&hostlocal.Reservation{ReservedAt: epoch}, at.mono})
		if !byTimestamp || age != want {
			t.Errorf("with a gain of %v: age %v (by its timestamp: %t), want %v by its timestamp", gain, age, byTimestamp, want)
		}
	}
}

// The age by a trusted timestamp and the time since a file was first seen are both lower
// bounds: the greater one counts.
func TestClockTakesTheGreaterAge(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const minute = time.Minute
	later := owned(network1, "10.0.0.2", "leaked") // than when it is first seen: a step back was not seen
	later.ReservedAt = epoch.Add(50 * minute)
	earlier := owned(network1, "10.0.0.3", "leaked")
	earlier.ReservedAt = epoch.Add(-10 * minute)
	var c clock
	first := reading{wall: epoch, boot: 24 * time.Hour}
	c.observe(first)
	c.see(first, []hostlocal.Reservation{later, earlier})
	at := reading{wall: epoch.Add(60 * minute), mono: 60 * minute, boot: 25 * time.Hour}
	c.observe(at)
	for i, r := range c.sees(at, []hostlocal.Reservation{later, earlier}) {
		want := []time.Duration{60 * minute, 70 * minute}[i]
		if age, byTimestamp := c.age(at, &r); !byTimestamp || age != want {
			t.Errorf("%v: age %v (by its timestamp: %t), want %v", r.IP, age, byTimestamp, want)
		}
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
		if c.steps.Back != row.back {
			t.Errorf("%s: the clock was set back by %v, want %v", row.reason, c.steps.Back, row.back)
		}
		since := epoch.Add(row.trustedSince)
		if row.now.wall.After(since) && (!c.trusted(row.now, since.Add(1)) || c.trusted(row.now, since.Add(-1)) ||
			c.trusted(row.now, since) == (row.trustedSince < 0)) {
			t.Errorf("%s: timestamps are not trusted from %v on", row.reason, row.trustedSince)
		}
		if c.trusted(row.now, row.now.wall.Add(1)) || c.sinceSteps(row.now, time.Time{}) {
			t.Errorf("%s: a timestamp of the future or none is trusted", row.reason)
		}
		start := epoch.Add(20 * hour)
		r := hostlocal.Reservation{ReservedAt: start.Add(-row.back - timestampGranularity - 2*clockTolerance - 1).Add(1)}
		if r.ReservedAt.Nanosecond() != 0 && !c.madeSince(&r, start) {
			t.Errorf("%s: a reservation made as long before a start as the clock was set back is older than the start", row.reason)
		}
		if r.ReservedAt = r.ReservedAt.Add(-1); c.madeSince(&r, start) {
			t.Errorf("%s: ... and one made before that is not", row.reason)
		}
	}
	now := c.last
	if startKnown(now, time.Time{}) || startKnown(now, now.wall.Add(1)) || !startKnown(now, now.wall) {
		t.Error("a start is not known from the first to the last moment")
	}
	c.observe(reading{wall: now.wall, mono: now.mono + hour}) // back, and the boot is not known
	if want := now.wall.Add(hour + 2*clockTolerance); !c.steps.Left.Equal(want) {
		t.Errorf("the clock showed %v before the step, want %v", c.steps.Left, want)
	}
}

// The date of a list is exact if it has a reading of the monotonic clock. One from outside counts
// if it is neither in the future nor from before a step or centuries ago.
func TestClockPlacesDates(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	base := time.Now()
	now := reading{wall: base.Round(0), mono: time.Hour, now: base}
	var c clock
	c.observe(now)
	c.steps.TrustedSince = now.wall.Add(-time.Minute)
	for _, row := range []struct {
		reason string
		date   time.Time
		want   time.Duration
	}{
		{"no date: the time of asking", time.Time{}, time.Hour},
		{"from outside, of now", base.Round(0), time.Hour},
		{"a minute ago, since the step", base.Round(0).Add(-time.Minute), time.Hour - time.Minute},
		{"before the step", base.Round(0).Add(-time.Minute - 1), always},
		{"in the future", base.Round(0).Add(time.Second), always},
		{"in the future, within the tolerance", base.Round(0).Add(clockTolerance), time.Hour},
		{"of this process, before the step", base.Add(-10 * time.Minute), 50 * time.Minute},
		{"of this process, after the question", base.Add(time.Minute), time.Hour},
	} {
		if got := c.asOf(now, now, &podsource.Answer{AsOf: row.date}); got != row.want {
			t.Errorf("%s: %v, want %v", row.reason, got, row.want)
		}
	}
	before := &candidate{&hostlocal.Reservation{ReservedAt: c.steps.TrustedSince.Add(-1)}, 0}
	if c.listedSince(now, &declaration{Answer: podsource.Answer{AsOf: base}}, before) {
		t.Error("a list is of after a reservation whose time is from before the step")
	}
	list := &podsource.Answer{AsOf: base.Round(0).Add(-years)} // that a person wrote
	if got := new(clock).asOf(now, now, list); got != now.mono-years {
		t.Errorf("a date of years ago, when the clock was not set: %v, want it where it was", got)
	}
}

// The time of the boot is the earliest by any reading: a clock that was set forward since
// then makes no reservation one from before the boot.
func TestClockTakesTheEarliestBoot(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var c clock
	made := hostlocal.Reservation{ReservedAt: epoch.Add(-2 * time.Second)} // since the boot
	if c.beforeBoot(made.ReservedAt) {
		t.Error("the boot is known without a reading")
	}
	c.observe(reading{wall: epoch, mono: 0})
	if c.beforeBoot(made.ReservedAt) {
		t.Error("the boot is known without one in the readings")
	}
	for _, row := range []struct {
		reason string
		now    reading
		want   bool
	}{
		{"by a clock that is ahead", reading{wall: epoch.Add(time.Hour), mono: 0, boot: time.Minute}, true},
		{"made since", reading{wall: epoch.Add(time.Minute), mono: time.Minute, boot: 2 * time.Minute}, false},
		{"the clock was set forward", reading{wall: epoch.Add(time.Hour), mono: 2 * time.Minute, boot: 3 * time.Minute}, false},
	} {
		if c.observe(row.now); c.beforeBoot(made.ReservedAt) != row.want {
			t.Errorf("%s: before the boot: %t", row.reason, !row.want)
		}
	}
	before := hostlocal.Reservation{ReservedAt: epoch.Add(-time.Minute - time.Second)}
	if c.beforeBoot(before.ReservedAt) {
		t.Error("a reservation from the second before the boot counts as from before it")
	}
	if before.ReservedAt = before.ReservedAt.Add(-1); !c.beforeBoot(before.ReservedAt) {
		t.Error("a reservation from before the earliest boot does not count as such")
	}
	if c.beforeBoot(time.Time{}) {
		t.Error("a reservation without a timestamp counts as from before the boot")
	}
}
