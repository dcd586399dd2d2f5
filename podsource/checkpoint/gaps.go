// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// A moment is a reading of the node's clocks.
type moment struct {
	wall time.Time
	boot time.Duration // since the node booted; zero: unknown
}

func now() moment { return moment{time.Now(), boottime.Since()} }

// clockTolerance is how far two readings may be apart without a step of the clock.
const clockTolerance = 100 * time.Millisecond

// maxGaps bounds how many gaps a record keeps; the oldest become one.
const maxGaps = 32

// gapsSince returns the times for which a record of this boot, or of an earlier one,
// can't speak if it is opened now: those that it knows of, and from when it was last
// written until to (hazard 51). Zero is without end.
//
// A record of an earlier boot is empty, and what was reserved before this one does
// not live, so its gap begins with the boot. Where the clock stepped since the
// record was written, nothing that bears a timestamp is known to be from before or
// after it.
func (r *record) gapsSince(sameBoot bool, now moment, to time.Time) []podsource.Gap {
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
			gap.To = to.Add(-step) // as the clock was
		}
	}
	return joined(append(slices.Clone(r.Gaps), gap))
}

// stepSince returns by how much the clock was set forward since the record was
// written, as far as that is known.
func (r *record) stepSince(sameBoot bool, now moment) time.Duration {
	if !sameBoot || now.boot == 0 || r.SinceBoot == 0 {
		return 0
	}
	return stepOf(now.wall.Add(-now.boot).Sub(r.Written.Add(-r.SinceBoot)))
}

// stepOf is by how much the clock was set forward where that is how far it is ahead.
func stepOf(ahead time.Duration) time.Duration {
	if ahead.Abs() <= clockTolerance {
		return 0
	}
	return ahead
}

// A reading is one of the clocks while the record is open.
type reading struct {
	wall time.Time // may be set at any time
	mono time.Time // of which only the monotonic part counts
}

func readingOf(now time.Time) reading { return reading{now.Round(0), now} }

// step returns by how much the wall clock was set forward between two readings.
func (r reading) step(now time.Time) time.Duration {
	return stepOf(now.Round(0).Sub(r.wall) - now.Sub(r.mono))
}

// stepped says that the clock was set, by how much in all, and when that was seen last.
type stepped struct {
	by   time.Duration
	seen time.Time
}

// within returns by how much the clock may have been set in the time before now.
func (s stepped) within(last time.Duration, now time.Time) time.Duration {
	if now.Sub(s.seen) > last {
		return 0
	}
	return s.by
}

// steppedAt is how the clock was set until now, without what was long ago.
func (s *state) steppedAt(now time.Time) stepped {
	step := s.at.step(now).Abs()
	if step == 0 {
		return s.stepped
	}
	return stepped{s.stepped.by + step, now}
}

// gapsAt returns the gaps as of now. In those that had not ended, what was reserved
// after the clock was set bears a timestamp of the other clock.
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

// joined returns gaps in order, those that overlap as one.
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

// joinedAlike is joined of sorted gaps that are alike but for their times.
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

// narrowed returns what is left of gaps when everybody of a form is recorded whose
// address was reserved before a time: the time since then, and of the others what it
// was. A gap without an end has one at to.
func narrowed(gaps []podsource.Gap, form podsource.Form, before, to time.Time) (left []podsource.Gap) {
	for _, g := range gaps {
		if g.To.IsZero() {
			g.To = to
		}
		if others := g; form != podsource.AnyForm {
			if g.But == form || form == "" {
				left = append(left, g)
				continue
			}
			others.But = form
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
