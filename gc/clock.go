// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A reading is one look at the node's clocks.
type reading struct {
	wall time.Time     // may be set back or forward at any time
	mono time.Duration // since the reconciler was made, and never set
	boot time.Duration // since the node booted; zero where that is unknown
}

// A clock tells how old things are at least, on a node whose wall clock may be
// set while the process runs (R5, A4). It compares the wall clock with the
// monotonic one. On Linux both are slewed alike, so where they drift apart the
// wall clock was set, or the node slept.
//
// A timestamp from before such a step says nothing of an age. What bears one
// counts from when this process first saw it, on the monotonic clock.
type clock struct {
	anchor reading // the first reading, or the one that saw the last step
	last   reading
	drift  time.Duration // by how much the wall clock has gained since anchor

	// trustedSince is the first wall time that the clock has not shown before a
	// step: older timestamps may be from the clock as it was then.
	trustedSince time.Time
	// The wall times that were shown twice, before a step back and after it.
	// Which of the two a start in here means, nobody knows.
	twiceFrom, twiceTo time.Time
	// bootedAt is the earliest wall time at which the node can have booted, by
	// any reading. Zero is unknown.
	bootedAt time.Time

	// seen says since when this process has seen something, in the last pass and in
	// all before it without a gap: a file that nobody alive was known to hold, the pod
	// of a podID finished; of a source's date where that was placed, and of any date
	// of it when that pass asked.
	seen map[any]time.Duration
}

// A file is one reservation file, as long as nobody changes it.
type file struct {
	network string
	ip      netip.Addr
	id      hostlocal.Identity
}

type podID struct {
	types.NamespacedName
	uid   types.UID
	other string // what else is known of one without a UID: another may have its name later
}

// A date is one that a source's answers bore, in nanoseconds since 1970.
type date struct {
	place  int
	source string
	asOf   int64
}

const anyDate = math.MinInt64

const (
	// clockTolerance is how far two readings of the clocks may be apart without
	// a step.
	clockTolerance = 100 * time.Millisecond
	// timestampGranularity is how much too early the kernel may stamp a file: it
	// uses the time of its last tick, 10 ms apart at most. Some file systems keep
	// whole seconds only, the coarsest of them even ones.
	timestampGranularity = 10 * time.Millisecond
	coarseTimestamps     = 2 * time.Second
	// holdFinished is for how long a finished pod holds what it names: its
	// sandbox goes later than its containers.
	holdFinished = 5 * time.Minute
)

// observe takes note of a reading. It must see every reading that is used.
func (c *clock) observe(now reading) {
	if now.boot > 0 {
		if booted := now.wall.Add(-now.boot); c.bootedAt.IsZero() || booted.Before(c.bootedAt) {
			c.bootedAt = booted
		}
	}
	if c.last.wall.IsZero() {
		c.anchor, c.last = now, now
		return
	}
	before := c.last
	c.last = now
	onOldClock := c.anchor.wall.Add(now.mono - c.anchor.mono)
	c.drift = now.wall.Sub(onOldClock)
	if c.drift.Abs() <= clockTolerance {
		return
	}
	c.trustedSince = slices.MaxFunc([]time.Time{c.trustedSince, now.wall, onOldClock.Add(clockTolerance)}, time.Time.Compare)
	if c.drift < 0 {
		from := now.wall.Add(before.mono - now.mono) // where the step led to, at the lowest
		if c.twiceFrom.IsZero() || from.Before(c.twiceFrom) {
			c.twiceFrom = from
		}
		c.twiceTo = slices.MaxFunc([]time.Time{c.twiceTo, onOldClock.Add(clockTolerance)}, time.Time.Compare)
	}
	c.anchor, c.drift = now, 0
}

// age returns how old r is at least, and whether its own timestamp says so. Its
// timestamp and the time for which it was seen unowned are both lower bounds.
func (c *clock) age(at reading, r *hostlocal.Reservation) (age time.Duration, byTimestamp bool) {
	age = at.mono - c.firstSeen(at, fileOf(r))
	if c.trusted(at, r.ReservedAt) {
		return max(age, c.since(at, r.ReservedAt)), true
	}
	return age, false
}

// firstSeen returns since when this process has seen a file unowned or a pod
// finished, on the monotonic clock; for what it sees for the first time, since now.
func (c *clock) firstSeen(at reading, what any) time.Duration {
	if first, ok := c.seen[what]; ok {
		return first
	}
	return at.mono
}

// finishedFor returns for how long a pod has been finished at least: since its
// reported end, or since it was first seen so.
func (c *clock) finishedFor(at reading, p *podsource.Pod) time.Duration {
	if c.trusted(at, p.FinishedAt) {
		return c.since(at, p.FinishedAt)
	}
	return at.mono - c.firstSeen(at, podIDOf(p))
}

func fileOf(r *hostlocal.Reservation) file { return file{r.Network, r.IP, r.Identity()} }

// trusted reports whether a timestamp can be from nothing but the clock as it is.
func (c *clock) trusted(at reading, stamp time.Time) bool {
	return !stamp.IsZero() && !stamp.After(at.wall) && !stamp.Before(c.trustedSince)
}

// since returns for how long a thing has been so at least that bears a trusted
// timestamp.
func (c *clock) since(at reading, stamp time.Time) time.Duration {
	return at.wall.Sub(stamp) - max(0, c.drift)
}

// startKnown reports whether a pod's start can be compared with reservations:
// it was reported, it does not lie in the future, and the clock did not show it
// twice (R4).
func (c *clock) startKnown(now reading, start time.Time) bool {
	if start.IsZero() || start.After(now.wall) {
		return false
	}
	return start.Before(c.twiceFrom) || start.After(c.twiceTo)
}

// madeSince reports whether a reservation may have been made since a pod's start:
// its timestamp may be too early, and a step within the tolerance not be seen.
func madeSince(r *hostlocal.Reservation, start time.Time) bool {
	return !r.ReservedAt.Before(start.Add(-granularity(r.ReservedAt) - 2*clockTolerance))
}

// granularity is how much too early a file's timestamp may be.
func granularity(stamp time.Time) time.Duration {
	if stamp.Nanosecond() == 0 {
		return timestampGranularity + coarseTimestamps
	}
	return timestampGranularity
}

// beforeBoot reports whether a reservation was made before the node booted, by
// every clock that this process has seen (R4).
func (c *clock) beforeBoot(r *hostlocal.Reservation) bool {
	return !r.ReservedAt.IsZero() && r.ReservedAt.Before(c.bootedAt.Add(-time.Second)) // nothing is from before a zero bootedAt
}

// asOf places the date of the answer of a source, by its place, on the monotonic
// clock, at the earliest. A date that may be from before a step was given since
// the source last bore another one, and may have been as old then as listAge;
// where the last one is not known, or the date lies in the future, it is always.
func (c *clock) asOf(at, now reading, place int, a *podsource.Answer, listAge time.Duration) time.Duration {
	const tooOld = 100 * 365 * 24 * time.Hour
	old := max(0, at.wall.Sub(a.AsOf))
	switch {
	case a.AsOf.IsZero():
		return at.mono
	case a.AsOf.After(now.wall.Add(clockTolerance)), old > tooOld:
		return always
	case !a.AsOf.Before(c.trustedSince):
		return at.mono - old
	}
	if placed, ok := c.seen[date{place, a.Source, a.AsOf.UnixNano()}]; ok {
		return placed
	}
	if last, ok := c.seen[date{place, a.Source, anyDate}]; ok {
		return min(last-listAge, at.mono-old)
	}
	return always
}

func podIDOf(p *podsource.Pod) podID {
	id := podID{NamespacedName: p.NamespacedName, uid: p.UID}
	if p.UID == "" {
		id.other = fmt.Sprint(p.ContainerIDs, p.IPs)
	}
	return id
}

// remember takes note of what a pass found unowned, of the pods that it saw finished,
// and of the dates of answers. What is not among them any more is forgotten.
func (c *clock) remember(s *snapshot, entries []Entry) {
	seen := make(map[any]time.Duration)
	for i := range entries {
		if !slices.Contains([]Verdict{InUse, Conflict, Malformed, Released}, entries[i].Reason.Verdict()) {
			f := fileOf(entries[i].Reservation)
			seen[f] = c.firstSeen(s.at, f)
		}
	}
	for i, d := range s.evidence[len(s.evidence)-1] {
		for k := range d.Pods {
			if p := &d.Pods[k]; p.HasFinished() {
				id := podIDOf(p)
				seen[id] = c.firstSeen(s.at, id)
			}
		}
		if !d.AsOf.IsZero() {
			seen[date{i, d.Source, d.AsOf.UnixNano()}], seen[date{i, d.Source, anyDate}] = d.asOf, s.at.mono
		}
	}
	c.seen = seen
}
