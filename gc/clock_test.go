// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
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
		reading := func() moment { return moment{epoch.Add(now + offset), now} }
		pick := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

		type stamped struct {
			made time.Duration
			r    hostlocal.Reservation
		}
		var all []stamped
		make1 := func() { // what is made before the first reading is not covered: see A4
			all = append(all, stamped{now, hostlocal.Reservation{ReservedAt: epoch.Add(now + offset), Owner: hostlocal.Empty}})
		}
		var c clock
		c.observe(reading())
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
			at := reading()
			c.observe(at)
			rs := make([]hostlocal.Reservation, len(all))
			for i := range all {
				rs[i] = all[i].r
			}
			c.sight(at, rs)
			for i, a := range all {
				age, sure := c.age(at, &a.r)
				if real := now - a.made; age > real {
					t.Fatalf("seed %d: a reservation that is %v old passes for %v (by its stamp: %t)", seed, real, age, sure)
				}
				// Each as a pod's start, and all later ones as reservations that may be its own.
				if !c.startKnown(at, a.r.ReservedAt) {
					continue
				}
				for _, b := range all[i:] {
					if b.r.ReservedAt.Before(a.r.ReservedAt.Add(-grain)) {
						t.Fatalf("seed %d: what was made %v after a start passes for older than it", seed, b.made-a.made)
					}
				}
			}
		}
		// Liveness: whatever has been seen is old when the clock was left alone long enough.
		rs := make([]hostlocal.Reservation, len(all))
		for i := range all {
			rs[i] = all[i].r
		}
		now += time.Hour
		at := reading()
		c.observe(at)
		c.sight(at, rs)
		for _, a := range all {
			if age, _ := c.age(at, &a.r); age < time.Hour-noise {
				t.Fatalf("seed %d: after an hour of peace a reservation passes for %v", seed, age)
			}
		}
	}
}

func TestClockForgetsWhatIsGone(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	future := hostlocal.Reservation{ReservedAt: epoch.Add(time.Hour), Owner: hostlocal.Empty}
	past := hostlocal.Reservation{ReservedAt: epoch.Add(-time.Hour), Owner: hostlocal.Empty}
	var c clock
	at := moment{epoch, 0}
	c.observe(at)
	c.sight(at, []hostlocal.Reservation{future, past})
	if len(c.sightings) != 1 {
		t.Errorf("remembers %d reservations, want the one whose stamp says nothing", len(c.sightings))
	}
	c.sight(at, []hostlocal.Reservation{past})
	if len(c.sightings) != 0 {
		t.Errorf("remembers %d reservations that are gone", len(c.sightings))
	}
}

// A wall clock that runs a little fast is no step, but makes nothing older.
func TestClockTakesSmallGainsOff(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var c clock
	c.observe(moment{epoch, 0})
	at := moment{epoch.Add(time.Minute + 50*time.Millisecond), time.Minute}
	c.observe(at)
	age, sure := c.age(at, &hostlocal.Reservation{ReservedAt: epoch})
	if !sure || age != time.Minute {
		t.Errorf("got age %v (by its stamp: %t), want 1m0s by its stamp", age, sure)
	}
}
