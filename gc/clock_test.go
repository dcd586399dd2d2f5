// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R4 and R5: however the clock is set, no age is overstated, and no reservation that a pod
// made after its start passes for older than the pod. And everything grows old
// in the end.
func TestHazard19AgesAreNeverOverstated(t *testing.T) {
	for seed := range uint64(1000) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var offset time.Duration // of the wall clock
		now := time.Duration(0)  // real time, as the monotonic clock has it
		read := func() reading { return reading{wall: epoch.Add(now + offset), mono: now} }
		pick := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

		type stamped struct {
			made time.Duration
			r    hostlocal.Reservation
		}
		var all []stamped // their networks tell them apart
		make1 := func() { // what is made before the first reading is not covered: see A4
			all = append(all, stamped{now, hostlocal.Reservation{Network: strconv.Itoa(len(all)), ReservedAt: epoch.Add(now + offset), Owner: hostlocal.Empty}})
		}
		var c clock
		c.observe(read())
		for range 12 {
			now += pick(10 * time.Minute)
			make1()
			now += pick(10 * time.Minute)
			switch rnd.IntN(4) {
			case 0:
				offset -= pick(2 * time.Hour)
			case 1:
				offset += pick(365 * 24 * time.Hour)
			}
			now += pick(10 * time.Minute)
			make1()
			at := read()
			c.observe(at)
			entries := make([]Entry, len(all))
			for i := range all {
				entries[i] = Entry{Reservation: &all[i].r, Reason: TooYoung}
			}
			remember(&c, at, entries)
			for i, a := range all {
				age, sure := c.age(at, &a.r)
				if real := now - a.made; age > real {
					t.Fatalf("seed %d: a reservation that is %v old counts as %v old (by its timestamp: %t)", seed, real, age, sure)
				}
				// Each as a pod's start, and all later ones as reservations that may be its own.
				if !c.startKnown(at, a.r.ReservedAt) {
					continue
				}
				for _, b := range all[i:] {
					if b.r.ReservedAt.Before(a.r.ReservedAt.Add(-timestampGranularity)) {
						t.Fatalf("seed %d: what was made %v after a start counts as older than it", seed, b.made-a.made)
					}
				}
			}
		}
		// Liveness: whatever has been seen is old when the clock was left alone long enough.
		now += time.Hour
		at := read()
		c.observe(at)
		for _, a := range all {
			if age, _ := c.age(at, &a.r); age < time.Hour-clockTolerance {
				t.Fatalf("seed %d: after an hour in which the clock was left alone a reservation counts as %v old", seed, age)
			}
		}
	}
}

// remember is what a pass of one look has the clock remember.
func remember(c *clock, at reading, entries []Entry, look ...podsource.Answer) {
	s := &snapshot{at: at, clock: c, opts: &Options{RuntimeRequestTimeout: DefaultRuntimeRequestTimeout}}
	s.addLook(look, at)
	c.remember(s, entries)
}

// What is in use, gone or another file is forgotten, and so is a pod that is not
// listed as finished any more: none of them is remembered from pass to pass
// without a gap.
func TestClockForgets(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	entry := func(ip string, why Reason) Entry {
		r := owned(network1, ip, "leaked")
		r.ReservedAt = epoch.Add(time.Hour)
		return Entry{Reservation: &r, Reason: why}
	}
	finished := func(names ...string) (out []podsource.Answer) {
		for _, name := range names {
			out = append(out, podsource.Answer{Pods: []podsource.Pod{{NamespacedName: named(name), Finished: true}}})
		}
		return out
	}
	var c clock
	at := func(d time.Duration) reading { return reading{wall: epoch.Add(d), mono: d} }
	c.observe(at(0))
	unowned := []Reason{TooYoung, NotYetListed, UntrustedTimestamp, StaleAnswer, PodStarting, PodStartUnknown, StartingNoEnd, ForeignOwner, NoSourceForNetwork, CacheIsNewer,
		Unowned, EmptyOwner, NetworkNotNamed, NotTried, OwnerUnreadable, SiblingUnreadable, ReleaseFailed}
	owned := []Reason{ContainerLive, AddressClaimed, SiblingInUse, OtherContainer, TwoPods, ClaimedInOtherNetwork, OwnerInConflict, OwnerMalformed}
	var entries []Entry
	for i, why := range append(unowned, owned...) {
		entries = append(entries, entry(fmt.Sprintf("10.0.0.%d", i+1), why))
	}
	remember(&c, at(0), entries, finished("a", "b")...)
	if len(c.seen) != len(unowned)+2 {
		t.Errorf("remembers %d reservations and pods, want %d and 2", len(c.seen), len(unowned))
	}
	remember(&c, at(time.Minute), []Entry{entry("10.0.0.1", Unowned), entry("10.0.0.2", ContainerLive), entry("10.0.0.99", Unowned)}, finished("b", "c")...)
	for ip, want := range map[string]time.Duration{"10.0.0.1": 0, "10.0.0.2": time.Hour, "10.0.0.3": time.Hour, "10.0.0.99": time.Minute} {
		e := entry(ip, Unowned)
		if got := c.firstSeen(at(time.Hour), fileOf(e.Reservation)); got != want {
			t.Errorf("%s was first seen at %v, want %v", ip, got, want)
		}
	}
	for name, want := range map[string]time.Duration{"a": 0, "b": time.Hour, "c": 59 * time.Minute} {
		if got := c.finishedFor(at(time.Hour), &podsource.Pod{NamespacedName: named(name), Finished: true}); got != want {
			t.Errorf("pod %s has been finished for %v, want %v", name, got, want)
		}
	}
}

// A wall clock that runs a little fast is no step, but makes nothing older. Nor does
// one that runs a little slow.
func TestClockTakesSmallGainsOff(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const little = clockTolerance
	for gain, want := range map[time.Duration]time.Duration{little: time.Minute, -little: time.Minute - little} {
		var c clock
		c.observe(reading{wall: epoch})
		at := reading{wall: epoch.Add(time.Minute + gain), mono: time.Minute}
		c.observe(at)
		age, byTimestamp := c.age(at, &hostlocal.Reservation{ReservedAt: epoch})
		if !byTimestamp || age != want {
			t.Errorf("with a gain of %v: age %v (by its timestamp: %t), want %v by its timestamp", gain, age, byTimestamp, want)
		}
	}
}

// A start is known where it is not in the future and the clock showed its time once.
// A timestamp is trusted from the first time on that the clock has not shown before.
func TestClockKnowsItsSteps(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const hour, minute = time.Hour, time.Minute
	var c clock
	c.observe(reading{wall: epoch})
	c.observe(reading{wall: epoch.Add(hour), mono: hour})
	c.observe(reading{wall: epoch.Add(hour - minute), mono: hour + time.Second}) // set back
	forward := reading{wall: epoch.Add(3 * hour), mono: 2 * hour}
	c.observe(forward)
	twiceFrom, twiceTo := hour-minute-time.Second, hour+time.Second+clockTolerance
	for _, row := range []struct {
		reason string
		start  time.Duration
		known  bool
	}{
		{"long before the step back", hour / 2, true},
		{"before the time to which it led", twiceFrom - 1, true},
		{"at that time, or before by as much as passed between two readings", twiceFrom, false},
		{"at the time of the step", twiceTo, false},
		{"after it", twiceTo + 1, true},
		{"before the step forward", hour + hour/2, true},
		{"now", 3 * hour, true},
		{"in the future", 3*hour + 1, false},
	} {
		if got := c.startKnown(forward, epoch.Add(row.start)); got != row.known {
			t.Errorf("%s: known: %t", row.reason, got)
		}
	}
	if c.startKnown(forward, time.Time{}) {
		t.Error("a start that was not reported is known")
	}
	if !c.trusted(forward, forward.wall) || c.trusted(forward, forward.wall.Add(-1)) {
		t.Error("a timestamp is not trusted from the step forward on")
	}
}

// The boot is as early as any reading says: a clock that was set forward since
// makes nothing a reservation from before it.
func TestClockTakesTheEarliestBoot(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var c clock
	made := hostlocal.Reservation{ReservedAt: epoch.Add(-2 * time.Second)} // since the boot
	if c.beforeBoot(&made) {
		t.Error("without a reading the boot is unknown")
	}
	c.observe(reading{wall: epoch, mono: 0})
	if c.beforeBoot(&made) {
		t.Error("with no boot in the readings it is unknown")
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
		if c.observe(row.now); c.beforeBoot(&made) != row.want {
			t.Errorf("%s: before the boot: %t", row.reason, !row.want)
		}
	}
	before := hostlocal.Reservation{ReservedAt: epoch.Add(-time.Minute - time.Second)}
	if c.beforeBoot(&before) {
		t.Error("what was made in the second before the boot is from before it")
	}
	if before.ReservedAt = before.ReservedAt.Add(-1); !c.beforeBoot(&before) {
		t.Error("what was made before the earliest boot is not from before it")
	}
	if c.beforeBoot(&hostlocal.Reservation{}) {
		t.Error("a reservation without a timestamp is not from before the boot")
	}
}
