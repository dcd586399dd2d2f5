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

		type stamped struct {
			made time.Duration
			r    hostlocal.Reservation
		}
		var all []stamped   // each in a network of its own
		reserve := func() { // not before the first reading: A4 excludes that
			all = append(all, stamped{now, hostlocal.Reservation{Network: strconv.Itoa(len(all)), ReservedAt: epoch.Add(now + offset), Owner: hostlocal.Empty}})
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
				// Take its time as a pod's start; all later reservations may be the pod's.
				if !c.startKnown(at, a.r.ReservedAt) {
					continue
				}
				for _, b := range all[i:] {
					if b.r.ReservedAt.Before(a.r.ReservedAt.Add(-timestampGranularity)) {
						t.Fatalf("seed %d: a reservation from %v after a start counts as older than the start", seed, b.made-a.made)
					}
				}
			}
		}
		// Each reservation is old after the clock has not been set for long enough.
		now += time.Hour
		at := read()
		c.observe(at)
		for _, a := range all {
			if age, _ := c.age(at, &a.r); age < time.Hour-clockTolerance {
				t.Fatalf("seed %d: an hour after the last step a reservation counts as %v old", seed, age)
			}
		}
	}
}

// remember makes the clock remember a pass of one look.
func remember(c *clock, at reading, entries []Entry, look ...podsource.Answer) {
	s := &snapshot{at: at, clock: c, opts: &Options{RuntimeRequestTimeout: DefaultRuntimeRequestTimeout}}
	s.addLook(look, at)
	c.remember(s, entries)
}

// The clock forgets files that are in use, gone or replaced, and pods that are no longer
// listed as finished: it remembers only what it saw in every pass without a gap.
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

// A wall clock that runs a little fast or slow has no step, and makes no age greater.
func TestClockTakesSmallGainsOff(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const little = 100 * time.Millisecond // clockTolerance
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
	first := reading{wall: epoch}
	c.observe(first)
	remember(&c, first, []Entry{{Reservation: &later, Reason: UntrustedTimestamp}, {Reservation: &earlier, Reason: TooYoung}})
	at := reading{wall: epoch.Add(60 * minute), mono: 60 * minute}
	c.observe(at)
	for r, want := range map[*hostlocal.Reservation]time.Duration{&later: 60 * minute, &earlier: 70 * minute} {
		if age, byTimestamp := c.age(at, r); !byTimestamp || age != want {
			t.Errorf("%v: age %v (by its timestamp: %t), want %v", r.IP, age, byTimestamp, want)
		}
	}
}

// A start is known if it is not in the future and the clock showed its time once. A
// timestamp is trusted if the clock did not show its time before the last step.
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
		{"at that time, less the time between the two readings", twiceFrom, false},
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

// The time of the boot is the earliest by any reading: a clock that was set forward since
// then makes no reservation one from before the boot.
func TestClockTakesTheEarliestBoot(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var c clock
	made := hostlocal.Reservation{ReservedAt: epoch.Add(-2 * time.Second)} // since the boot
	if c.beforeBoot(&made) {
		t.Error("the boot is known without a reading")
	}
	c.observe(reading{wall: epoch, mono: 0})
	if c.beforeBoot(&made) {
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
		if c.observe(row.now); c.beforeBoot(&made) != row.want {
			t.Errorf("%s: before the boot: %t", row.reason, !row.want)
		}
	}
	before := hostlocal.Reservation{ReservedAt: epoch.Add(-time.Minute - time.Second)}
	if c.beforeBoot(&before) {
		t.Error("a reservation from the second before the boot counts as from before it")
	}
	if before.ReservedAt = before.ReservedAt.Add(-1); !c.beforeBoot(&before) {
		t.Error("a reservation from before the earliest boot does not count as such")
	}
	if c.beforeBoot(&hostlocal.Reservation{}) {
		t.Error("a reservation without a timestamp counts as from before the boot")
	}
}
