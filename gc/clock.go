// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A reading is what the node's clocks show at one time.
type reading struct {
	wall time.Time     // may be set back or forward at any time
	mono time.Duration // CLOCK_MONOTONIC, or its like; never set, and stands still during sleep
	boot time.Duration // since the node booted; zero where that is unknown
	now  time.Time     // wall with Go's reading of the monotonic clock
}

// A clock computes lower bounds of ages on a node whose wall clock may be set (R5, A4). It
// compares the wall clock with the monotonic one. Linux slews both alike, so if they drift
// apart, the wall clock was set or the node was suspended.
//
// A timestamp from before such a step says nothing about an age, and neither does one from
// before the node's boot: the clock may have been set after the boot, as on a board without a
// battery (hazard 80). The age then counts from when the file or the finished pod was first
// seen, on the monotonic clock.
type clock struct {
	anchor, last reading       // the first reading, or the one that saw the last step; and the last one
	drift        time.Duration // by how much the wall clock has gained since anchor
	steps        steps
	unsaved      bool // it may have seen a step that is not in the memory yet
	listed       bool // files are those of this pass, with what the memory has of them

	files    []candidate             // of the last pass, sorted by network and address
	finished map[podID]time.Duration // when each pod was first seen finished, or an entry unproven
	lists    map[bool]bool           // in the last look a source listed Kubernetes pods (false), or entries (true)
}

// steps is what was seen of steps of the wall clock.
type steps struct {
	TrustedSince time.Time     // the first wall time that the clock did not show before a step
	Highest      time.Time     // the latest wall time of a monotonic time of zero
	Back         time.Duration // how far below an earlier setting the clock was set
	BootedAt     time.Time     // the wall time of the boot, the earliest by any reading; zero is unknown
	Left         time.Time     // the latest time that the clock showed before a step; zero if none was seen
}

// A file identifies a reservation file by what no chmod and no relabeling changes (hazard 107).
type file struct {
	Network, ContainerID, IfName, Owner string
	IP                                  netip.Addr
	Inode                               uint64
	Modified                            int64 // in nanoseconds since 1970
}

func fileOf(r *hostlocal.Reservation) file {
	return file{r.Network, r.ContainerID, r.IfName, r.Owner.String(), r.IP, r.Inode(), r.ReservedAt.UnixNano()}
}

// String returns the file's name in a memory, one line.
func (f file) String() string {
	return fmt.Sprintf("file %q %q %d %d %q %q %s", f.Network, f.IP, f.Inode, f.Modified, f.ContainerID, f.IfName, f.Owner)
}

// A podID identifies a pod, or an entry of a cache that is not proven, by its name in a memory, one line.
type podID string

func podIDOf(p *podsource.Pod) podID {
	kind, id := "pod", []string{p.Namespace, p.Name, string(p.UID)}
	if p.Unproven {
		kind = "entry"
	}
	if p.UID == "" { // a later pod may have its name
		id = append(id, fmt.Sprint(p.ContainerIDs, p.IPs, p.Origin))
	}
	return podID(fmt.Sprintf("%s %q", kind, id))
}

func (id podID) unproven() bool { return strings.HasPrefix(string(id), "entry ") }

const (
	// clockTolerance is how far the clocks may drift apart without a step.
	clockTolerance = 100 * time.Millisecond
	// timestampGranularity is how much too early the kernel may stamp a file: it uses
	// the time of its last tick, and ticks are at most 10 ms apart. Some file systems
	// keep only whole seconds, the coarsest of them only even ones.
	timestampGranularity = 10 * time.Millisecond
	coarseTimestamps     = 2 * time.Second
	// bootTolerance is how far a time must be from that of the boot to count as before it.
	bootTolerance = time.Second
	// holdFinished is how long a finished pod still holds its sandbox and addresses:
	// the sandbox is removed after the containers.
	holdFinished = 5 * time.Minute
)

// observe records a reading, and notices a step since the last one. It must be called with every
// reading that is used.
func (c *clock) observe(now reading) {
	c.steps.bootedAt(now.wall.Add(-now.boot)) // an unknown boot is now, which is later
	if c.last = now; c.anchor.wall.IsZero() {
		c.anchor = now
	}
	var stepped bool
	if c.drift, stepped = c.steps.compare(c.anchor, now); stepped {
		c.anchor, c.drift, c.unsaved = now, 0, true
	}
}

// bootedAt records a wall time of the node's boot.
func (s *steps) bootedAt(wall time.Time) {
	if s.BootedAt.IsZero() || wall.Before(s.BootedAt) {
		s.BootedAt = wall
	}
}

// compare returns how far the wall clock has drifted from an earlier reading. If that is a step,
// timestamps are trusted only if the clock did not show them before it.
func (s *steps) compare(before, now reading) (drift time.Duration, stepped bool) {
	atZero := now.wall.Add(-now.mono)
	s.Highest = later(s.Highest, atZero)
	s.Back = max(s.Back, s.Highest.Sub(atZero))
	onOldClock := before.wall.Add(now.mono - before.mono)
	drift = now.wall.Sub(onOldClock)
	if stepped = drift.Abs() > clockTolerance; stepped {
		asleep := max(0, now.boot-before.boot-(now.mono-before.mono)) // the clock showed this time, too
		s.Left = later(s.Left, onOldClock.Add(clockTolerance+asleep))
		s.TrustedSince = later(later(s.TrustedSince, now.wall), s.Left)
	}
	return drift, stepped
}

// finishedFor returns a lower bound of the time since a pod finished, or since an entry was
// first seen that is not proven. It counts from the reported end, or, if that is not trusted,
// from when it was first seen.
func (c *clock) finishedFor(at reading, p *podsource.Pod) time.Duration {
	if c.trusted(at, p.FinishedAt) {
		return c.since(at, p.FinishedAt)
	}
	if first, ok := c.finished[podIDOf(p)]; ok {
		return at.mono - first
	}
	return 0
}

// trusted reports whether a timestamp is surely from the clock as it is now set, and from this
// boot.
func (c *clock) trusted(at reading, stamp time.Time) bool {
	return c.sinceSteps(at, stamp) && stamp.After(at.wall.Add(-at.boot)) // none is after an unknown boot
}

// sinceSteps is trusted, but for a doubt because of the boot.
func (c *clock) sinceSteps(at reading, stamp time.Time) bool {
	return !stamp.IsZero() && !stamp.After(at.wall) && !stamp.Before(c.steps.TrustedSince)
}

// since returns a lower bound of the time since a timestamp after the last step.
func (c *clock) since(at reading, stamp time.Time) time.Duration {
	return at.wall.Sub(stamp) - max(0, c.drift)
}

// madeSince reports whether a reservation may have been made since a pod's start, by a clock
// that may have been set back in between. The reservation's timestamp may be too early, and a
// step within the tolerance is not seen. What is not from before the boot was made since a start
// before that, whatever the clock showed in between. A start of zero is unknown, and before all.
func (c *clock) madeSince(r *hostlocal.Reservation, start time.Time) bool {
	if c.beforeBoot(start) && !c.beforeBoot(r.ReservedAt) {
		return true
	}
	return !r.ReservedAt.Before(start.Add(-c.steps.Back - granularity(r.ReservedAt) - 2*clockTolerance))
}

// granularity returns how much too early a file's timestamp may be.
func granularity(stamp time.Time) time.Duration {
	if stamp.Nanosecond() == 0 {
		return timestampGranularity + coarseTimestamps
	}
	return timestampGranularity
}

// beforeBoot reports whether a time is from before the node booted: before every reading of the
// boot, or before the last one and later than all that the clock showed before a step, as on a
// board whose clock began in 1970 (R4).
func (c *clock) beforeBoot(stamp time.Time) bool {
	if stamp.IsZero() || c.last.boot == 0 {
		return false
	}
	between := stamp.After(c.steps.Left) && stamp.Before(c.last.wall.Add(-c.last.boot-bootTolerance))
	return between || stamp.Before(c.steps.BootedAt.Add(-bootTolerance))
}

// asOf returns a lower bound of the monotonic time of an answer's date. A date of this process
// is exact. One from outside that is in the future, from before a step or centuries ago gives always.
func (c *clock) asOf(at, now reading, a *podsource.Answer) time.Duration {
	switch {
	case a.AsOf.IsZero():
		return at.mono
	case !at.now.IsZero() && a.AsOf != a.AsOf.Round(0): // with a reading of the monotonic clock
		return at.mono - max(0, at.now.Sub(a.AsOf))
	case a.AsOf.After(now.wall.Add(clockTolerance)), a.AsOf.Before(c.steps.TrustedSince):
		return always
	}
	return max(always, at.mono-max(0, at.wall.Sub(a.AsOf)))
}

// listedSince reports whether a list was made after r's reservation, so that the hook's
// assertion counts for it (R5). A list without a date was. The time of the reservation may be
// doubted for the boot.
func (c *clock) listedSince(at reading, d *declaration, r *candidate) bool {
	return d.AsOf.IsZero() || c.sinceSteps(at, r.ReservedAt) && r.ReservedAt.Add(granularity(r.ReservedAt)).Before(d.AsOf)
}

// A candidate is a reservation that was listed before the sources were asked (R1), and when
// its file was first seen, on the monotonic clock.
type candidate struct {
	*hostlocal.Reservation
	seen time.Duration
}

// see records the first sights of files whose owners were just read, and which are in the order
// of a list, as those of the last pass are. All others are forgotten.
func (c *clock) see(at reading, all []hostlocal.Reservation) {
	before := c.files
	c.files = make([]candidate, len(all))
	for i := range all {
		f := &all[i]
		c.files[i] = candidate{f, at.mono}
		for ; len(before) > 0 && cmp.Or(strings.Compare(before[0].Network, f.Network), before[0].IP.Compare(f.IP)) <= 0; before = before[1:] {
			if fileOf(before[0].Reservation) == fileOf(f) {
				c.files[i].seen = before[0].seen
			}
		}
	}
}

// seePods records the first sights of pods that are finished, and of entries that are not
// proven. Those that are not listed any more are forgotten if a source listed such: Kubernetes
// pods, or a cache.
func (c *clock) seePods(now reading, look []podsource.Answer) {
	finished := make(map[podID]time.Duration)
	c.lists = make(map[bool]bool)
	for _, a := range look {
		c.lists[false] = c.lists[false] || !a.Supplementary && a.Names == podsource.KubernetesPods
		c.lists[true] = c.lists[true] || a.Cache != nil
		for i := range a.Pods {
			if p := &a.Pods[i]; p.HasFinished() || p.Unproven {
				finished[podIDOf(p)] = now.mono
			}
		}
	}
	for id, first := range c.finished {
		if _, listed := finished[id]; listed || !c.lists[id.unproven()] {
			finished[id] = first
		}
	}
	c.finished = finished
}
