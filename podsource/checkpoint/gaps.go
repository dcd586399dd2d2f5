// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A moment is a reading of the node's clocks.
type moment struct {
	wall time.Time
	boot time.Duration // since the node booted; zero: unknown
}

func now() moment { return moment{time.Now(), sinceBoot()} }

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
	if step := booted.Sub(r.Written.Add(-r.SinceBoot)); step.Abs() > clockTolerance {
		gap.From = time.Time{}
		if !to.IsZero() && step < 0 {
			gap.To = to.Add(-step) // as the clock was
		}
	}
	return joined(append(slices.Clone(r.Gaps), gap))
}

// joined returns gaps in order, those that overlap as one.
func joined(gaps []podsource.Gap) []podsource.Gap {
	slices.SortFunc(gaps, func(a, b podsource.Gap) int { return a.From.Compare(b.From) })
	var out []podsource.Gap
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

// narrowed returns what is left of gaps when everybody is recorded whose address
// was reserved before a time. A gap without an end has one at to.
func narrowed(gaps []podsource.Gap, before, to time.Time) (left []podsource.Gap) {
	for _, g := range gaps {
		if g.To.IsZero() {
			g.To = to
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
			if h.To.IsZero() || !h.From.After(h.To) {
				both = append(both, h)
			}
		}
	}
	return both
}
