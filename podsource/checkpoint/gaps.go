// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// A bootReading has the wall clock and the time since the boot, read at one time.
type bootReading struct {
	wall time.Time
	boot time.Duration // zero: unknown
}

func readClocks() bootReading { return bootReading{time.Now(), boottime.Since()} }

// clockTolerance is how far two clocks may drift apart without a step.
const clockTolerance = 100 * time.Millisecond

// maxGaps is how many gaps a record keeps; the oldest are joined.
const maxGaps = 32

// gapsSince returns the gaps of a record that is opened now: its own, and the time from
// when it was last written until to (hazard 51). If to is zero, that gap has no end.
//
// A record of an earlier boot is empty, and no container of that boot is live, so the
// gap begins with this boot. If the clock was set since the record was written,
// timestamps don't show what was reserved before or after that, so the gap has no
// beginning.
func (r *record) gapsSince(sameBoot bool, now bootReading, to time.Time) []podsource.Gap {
	gap := podsource.Gap{From: r.Written, To: to}
	if r.Written.After(now.wall) {
		gap.From = time.Time{}
	}
	if now.boot == 0 || r.SinceBoot == 0 && sameBoot {
		return joined(append(slices.Clone(r.Gaps), gap))
	}
	booted := now.wall.Add(-now.boot)
	if !sameBoot {
		gap.From = booted.Add(-clockTolerance)
		return []podsource.Gap{gap}
	}
	if step := r.stepSince(sameBoot, now); step != 0 {
		gap.From = time.Time{}
		if !to.IsZero() && step < 0 {
			gap.To = to.Add(-step) // by the clock before it was set back
		}
	}
	return joined(append(slices.Clone(r.Gaps), gap))
}

// stepSince returns how far the clock was set forward since the record was written, or
// zero if that is unknown.
func (r *record) stepSince(sameBoot bool, now bootReading) time.Duration {
	if !sameBoot || now.boot == 0 || r.SinceBoot == 0 {
		return 0
	}
	return stepOf(now.wall.Add(-now.boot).Sub(r.Written.Add(-r.SinceBoot)))
}

// stepOf returns the step of a clock that is ahead of another one. A small difference
// is no step.
func stepOf(ahead time.Duration) time.Duration {
	if ahead.Abs() <= clockTolerance {
		return 0
	}
	return ahead
}

// A reading has the wall clock and the monotonic clock, read at one time.
type reading struct {
	wall time.Time // without monotonic clock
	mono time.Time // only its monotonic clock counts
}

func readingOf(now time.Time) reading { return reading{now.Round(0), now} }

// step returns how far the wall clock was set forward since the reading.
func (r reading) step(now time.Time) time.Duration {
	return stepOf(now.Round(0).Sub(r.wall) - now.Sub(r.mono))
}

// clockSteps are the steps of the wall clock.
type clockSteps struct {
	sum  time.Duration // of their absolute values
	last time.Time     // when the last one was noticed
}

// within returns how far the clock may have been set within a time before now.
func (s clockSteps) within(d time.Duration, now time.Time) time.Duration {
	if now.Sub(s.last) > d {
		return 0
	}
	return s.sum
}

// stepsAt returns the steps until now.
func (s *state) stepsAt(now time.Time) clockSteps {
	step := s.at.step(now).Abs()
	if step == 0 {
		return s.steps
	}
	return clockSteps{s.steps.sum + step, now}
}

// gapsAt returns the gaps as of now. If the clock was set, gaps that had not ended
// grow: reservations made after the step have timestamps of the new clock.
func (s *state) gapsAt(now time.Time) []podsource.Gap {
	step := s.at.step(now)
	if step == 0 {
		return s.gaps
	}
	gaps := slices.Clone(s.gaps)
	for i := range gaps {
		g := &gaps[i]
		if !g.To.IsZero() && g.To.Before(s.at.wall) {
			continue
		}
		if step < 0 && !g.From.IsZero() {
			g.From = g.From.Add(step)
		}
		if step > 0 && !g.To.IsZero() {
			g.To = g.To.Add(step)
		}
	}
	return joined(gaps)
}

// joined sorts gaps and joins those that overlap.
func joined(gaps []podsource.Gap) (out []podsource.Gap) {
	slices.SortStableFunc(gaps, func(a, b podsource.Gap) int {
		return cmp.Or(cmp.Compare(a.But, b.But), a.From.Compare(b.From))
	})
	for len(gaps) > 0 {
		n := slices.IndexFunc(gaps, func(g podsource.Gap) bool { return g.But != gaps[0].But })
		if n < 0 {
			n = len(gaps)
		}
		out = append(out, joinedAlike(gaps[:n])...)
		gaps = gaps[n:]
	}
	return out
}

// joinedAlike joins sorted gaps with the same But.
func joinedAlike(gaps []podsource.Gap) (out []podsource.Gap) {
	for i, g := range gaps {
		last := len(out) - 1
		overlaps := last >= 0 && (out[last].To.IsZero() || !g.From.After(out[last].To))
		if !overlaps && (last < 0 || len(gaps)-i+len(out) <= maxGaps) {
			out = append(out, g)
			continue
		}
		if !out[last].To.IsZero() && (g.To.IsZero() || g.To.After(out[last].To)) {
			out[last].To = g.To
		}
	}
	return out
}

// narrowed returns the gaps that are left after all containers of a kind
// whose addresses were reserved before a time were recorded. For these containers a
// gap begins at that time, for others it stays. A gap without an end ends at to.
func narrowed(gaps []podsource.Gap, kind podsource.Kind, before, to time.Time) (left []podsource.Gap) {
	for _, g := range gaps {
		if g.To.IsZero() {
			g.To = to
		}
		if others := g; kind != podsource.AnyContainer {
			if g.But == kind {
				left = append(left, g)
				continue
			}
			others.But = kind
			left = append(left, others)
		}
		if before.After(g.From) {
			g.From = before
		}
		if !g.From.After(g.To) {
			left = append(left, g)
		}
	}
	return joined(left)
}

// common returns the times that are in gaps of both.
func common(a, b []podsource.Gap) (both []podsource.Gap) {
	for _, g := range a {
		for _, h := range b {
			if h.From.Before(g.From) {
				h.From = g.From
			}
			if h.To.IsZero() || !g.To.IsZero() && g.To.Before(h.To) {
				h.To = g.To
			}
			h.But = cmp.Or(g.But, h.But)
			if h.To.IsZero() || !h.From.After(h.To) {
				both = append(both, h)
			}
		}
	}
	return both
}
