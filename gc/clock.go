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

// A reading is what the node's clocks show at one time.
type reading struct {
	wall time.Time     // may be set back or forward at any time
	mono time.Duration // since the reconciler was made; never set
	boot time.Duration // since the node booted; zero where that is unknown
}

// A clock computes lower bounds of ages on a node whose wall clock may be set while
// the process runs (R5, A4). It compares the wall clock with the monotonic one. Linux
// slews both alike, so if they drift apart, the wall clock was set or the node was
// suspended.
//
// A timestamp from before such a step says nothing about an age. The age then counts
// from when this process first saw the file or the finished pod, on the monotonic clock.
type clock struct {
	anchor reading // the first reading, or the one that saw the last step
	last   reading
	drift  time.Duration // by how much the wall clock has gained since anchor

	// trustedSince is the first wall time that the clock did not show before a step.
	// Older timestamps may be from before the step.
	trustedSince time.Time
	// The wall times that the clock showed twice, before and after a step back. A
	// start in this range may mean either.
	twiceFrom, twiceTo time.Time
	// bootedAt is the wall time of the node's boot, the earliest by any reading. Zero
	// is unknown.
	bootedAt time.Time

	// seen has monotonic times, by each file, podID and date of the last pass. A file's is
	// the time since which each pass found it without a live holder, a podID's the time
	// since which each pass found the pod finished. A date's is the result of asOf, or, for
	// anyDate, the time at which the last pass asked.
	seen map[any]time.Duration
}

// A file identifies a reservation file. A file that was changed is another one.
type file struct {
	network string
	ip      netip.Addr
	id      hostlocal.Identity
}

type podID struct {
	types.NamespacedName
	uid   types.UID
	other string // containers and addresses of a pod without a UID: a later one may have its name
}

// A date is the AsOf of a source's answer.
type date struct {
	place  int // the position of the source
	source string
	asOf   int64 // in nanoseconds since 1970, or anyDate
}

const anyDate = math.MinInt64

const (
	// clockTolerance is how far the clocks may drift apart without a step.
	clockTolerance = 100 * time.Millisecond
	// timestampGranularity is how much too early the kernel may stamp a file: it uses
	// the time of its last tick, and ticks are at most 10 ms apart. Some file systems
	// keep only whole seconds, the coarsest of them only even ones.
	timestampGranularity = 10 * time.Millisecond
	coarseTimestamps     = 2 * time.Second
	// holdFinished is how long a finished pod still holds its sandbox and addresses:
	// the sandbox is removed after the containers.
	holdFinished = 5 * time.Minute
)

// observe records a reading. It must be called with every reading that is used.
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
		from := now.wall.Add(before.mono - now.mono) // a lower bound of the time after the step
		if c.twiceFrom.IsZero() || from.Before(c.twiceFrom) {
			c.twiceFrom = from
		}
		c.twiceTo = slices.MaxFunc([]time.Time{c.twiceTo, onOldClock.Add(clockTolerance)}, time.Time.Compare)
	}
	c.anchor, c.drift = now, 0
}

// age returns a lower bound of r's age, and whether r's timestamp is trusted. The age
// by a trusted timestamp and the time for which r was seen unowned are lower bounds.
func (c *clock) age(at reading, r *hostlocal.Reservation) (age time.Duration, byTimestamp bool) {
	age = at.mono - c.firstSeen(at, fileOf(r))
	if c.trusted(at, r.ReservedAt) {
		return max(age, c.since(at, r.ReservedAt)), true
	}
	return age, false
}

// firstSeen returns the monotonic time since which this process has seen a file unowned
// or a pod finished. If it sees that for the first time, it is the time of at.
func (c *clock) firstSeen(at reading, what any) time.Duration {
	if first, ok := c.seen[what]; ok {
		return first
	}
	return at.mono
}

// finishedFor returns a lower bound of the time since a pod finished. It counts from
// the reported end, or, if that is not trusted, from when the pod was first seen finished.
func (c *clock) finishedFor(at reading, p *podsource.Pod) time.Duration {
	if c.trusted(at, p.FinishedAt) {
		return c.since(at, p.FinishedAt)
	}
	return at.mono - c.firstSeen(at, podIDOf(p))
}

func fileOf(r *hostlocal.Reservation) file { return file{r.Network, r.IP, r.Identity()} }

// trusted reports whether a timestamp is surely from the clock as it is now set.
func (c *clock) trusted(at reading, stamp time.Time) bool {
	return !stamp.IsZero() && !stamp.After(at.wall) && !stamp.Before(c.trustedSince)
}

// since returns a lower bound of the time since a trusted timestamp.
func (c *clock) since(at reading, stamp time.Time) time.Duration {
	return at.wall.Sub(stamp) - max(0, c.drift)
}

// startKnown reports whether a pod's start can be compared with reservations: it was
// reported, it is not in the future, and the clock showed it only once (R4).
func (c *clock) startKnown(now reading, start time.Time) bool {
	if start.IsZero() || start.After(now.wall) {
		return false
	}
	return start.Before(c.twiceFrom) || start.After(c.twiceTo)
}

// madeSince reports whether a reservation may have been made since a pod's start. Its
// timestamp may be too early, and a step within the tolerance is not seen.
func madeSince(r *hostlocal.Reservation, start time.Time) bool {
	return !r.ReservedAt.Before(start.Add(-granularity(r.ReservedAt) - 2*clockTolerance))
}

// granularity returns how much too early a file's timestamp may be.
func granularity(stamp time.Time) time.Duration {
	if stamp.Nanosecond() == 0 {
		return timestampGranularity + coarseTimestamps
	}
	return timestampGranularity
}

// beforeBoot reports whether a reservation was made before the node booted, by every
// reading of this process (R4).
func (c *clock) beforeBoot(r *hostlocal.Reservation) bool {
	return !r.ReservedAt.IsZero() && r.ReservedAt.Before(c.bootedAt.Add(-time.Second)) // nothing is from before a zero bootedAt
}

// asOf returns a lower bound of the monotonic time of an answer's date. place is the
// position of the source. A date that may be from before a step was set after the
// source's last answer with another date, and may have been as old as listAge by then.
// If that last answer is unknown, or the date is in the future, also by the clock as it was
// before a step while the sources were asked, asOf returns always.
func (c *clock) asOf(at, now reading, place int, a *podsource.Answer, listAge time.Duration) time.Duration {
	const tooOld = 100 * 365 * 24 * time.Hour
	old := max(0, at.wall.Sub(a.AsOf))
	present := slices.MinFunc([]time.Time{now.wall, at.wall.Add(now.mono - at.mono)}, time.Time.Compare)
	switch {
	case a.AsOf.IsZero():
		return at.mono
	case a.AsOf.After(present.Add(clockTolerance)), old > tooOld:
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

// remember records the files that a pass found unowned, the pods that it saw finished,
// and the dates of the answers. Everything else is forgotten.
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
