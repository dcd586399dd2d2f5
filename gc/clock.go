// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A moment is one reading of both of the node's clocks.
type moment struct {
	wall time.Time     // may be set back or forward at any time
	mono time.Duration // since the reconciler was made, and never set
}

// A clock tells how old things are at least, on a node whose wall clock may be
// set while the process runs (R5, A4). It compares the wall clock with the
// monotonic one. On Linux both are slewed alike, so where they drift apart the
// wall clock was set, or the node slept.
//
// A stamp from before such a step says nothing of an age. What bears one counts
// from the moment it was first seen, on the monotonic clock.
type clock struct {
	anchor moment // the first reading, or the one that saw the last step
	last   moment
	drift  time.Duration // by how much the wall clock has gained since anchor

	// sound is the first wall time that the clock has not shown before a step:
	// older stamps may be from the clock as it was then.
	sound time.Time
	// The wall times that were shown twice, before a step back and after it.
	// Which of the two a start in here means, nobody knows.
	twiceFrom, twiceTo time.Time

	sightings map[sighting]time.Duration
}

// A sighting is a reservation whose stamp can't be used, as long as it stays.
type sighting struct {
	ip          netip.Addr
	containerID string
	stamp       int64
}

// noise is how far two readings of the clocks may be apart without a step.
const noise = 100 * time.Millisecond

// grain is how much too early the kernel may stamp a file: it uses the time of
// its last tick, 10 ms apart at most.
const grain = 10 * time.Millisecond

// observe takes note of a reading. It must see every reading that is used.
func (c *clock) observe(now moment) {
	if c.last.wall.IsZero() {
		c.anchor, c.last = now, now
		return
	}
	before := c.last
	c.last = now
	onOldClock := c.anchor.wall.Add(now.mono - c.anchor.mono)
	c.drift = now.wall.Sub(onOldClock)
	if c.drift.Abs() <= noise {
		return
	}
	c.sound = latest(c.sound, now.wall, onOldClock.Add(noise))
	if c.drift < 0 {
		from := now.wall.Add(before.mono - now.mono) // where the step led to, at the lowest
		if c.twiceFrom.IsZero() || from.Before(c.twiceFrom) {
			c.twiceFrom = from
		}
		c.twiceTo = latest(c.twiceTo, onOldClock.Add(noise))
	}
	c.anchor, c.drift = now, 0
}

// age returns how old r is at least at the moment at, and whether its own stamp
// said so.
func (c *clock) age(at moment, r *hostlocal.Reservation) (age time.Duration, sure bool) {
	if c.usable(at, r.ReservedAt) {
		return at.wall.Sub(r.ReservedAt) - max(0, c.drift), true
	}
	s := sighting{r.IP, r.ContainerID, r.ReservedAt.UnixNano()}
	first, ok := c.sightings[s]
	if !ok {
		return 0, false
	}
	return at.mono - first, false
}

// usable reports whether stamp can be from nothing but the clock as it is.
func (c *clock) usable(at moment, stamp time.Time) bool {
	return !stamp.After(at.wall) && !stamp.Before(c.sound)
}

// sight remembers when those reservations were first seen whose stamps can't be
// used, and forgets those that are not there any more. With a clock that was
// never set this does nothing.
func (c *clock) sight(at moment, rs []hostlocal.Reservation) {
	var still map[sighting]time.Duration
	for i := range rs {
		r := &rs[i]
		if r.Owner == hostlocal.Unread || c.usable(at, r.ReservedAt) {
			continue
		}
		s := sighting{r.IP, r.ContainerID, r.ReservedAt.UnixNano()}
		first, ok := c.sightings[s]
		if !ok {
			first = at.mono
		}
		if still == nil {
			still = make(map[sighting]time.Duration)
		}
		still[s] = first
	}
	c.sightings = still
}

// startKnown reports whether a pod's start can be compared with reservations:
// it was reported, it does not lie in the future, and the clock did not show it
// twice (R4).
func (c *clock) startKnown(now moment, start time.Time) bool {
	if start.IsZero() || start.After(now.wall) {
		return false
	}
	return start.Before(c.twiceFrom) || start.After(c.twiceTo)
}

// since returns for how long a thing has been so at least whose stamp is given.
// An unusable stamp is as good as this very moment.
func (c *clock) since(at moment, stamp time.Time) time.Duration {
	if !c.usable(at, stamp) {
		return 0
	}
	return at.wall.Sub(stamp) - max(0, c.drift)
}

func latest(t time.Time, more ...time.Time) time.Time {
	for _, u := range more {
		if u.After(t) {
			t = u
		}
	}
	return t
}
