// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A gap is the time in which the record was not kept. It ends at To, since when the record is
// complete; zero is not yet. It begins at From, zero being ever, if that is not after To. Of
// containers that are no sandboxes it begins at Others, which is not after From.
type gap struct {
	From   time.Time `json:"from,omitzero"`
	Others time.Time `json:"others,omitzero"`
	To     time.Time `json:"to,omitzero"`
}

// has reports whether the gap has a time, its end aside.
func (g gap) has(t time.Time) bool { return g.To.IsZero() || !t.After(g.To) }

// answer returns the gap as sources declare it.
func (g gap) answer() (gaps []podsource.Gap) {
	if g.Others.Before(g.From) && g.has(g.Others) {
		gaps = append(gaps, podsource.Gap{From: g.Others, To: g.To, But: podsource.SandboxContainers})
	}
	if g.has(g.From) {
		gaps = append(gaps, podsource.Gap{From: g.From, To: g.To})
	}
	return gaps
}

// clockTolerance is how far two clocks may drift apart without a step.
const clockTolerance = 100 * time.Millisecond

// stepOf returns the step of a clock that is ahead of another one. A small difference
// is no step.
func stepOf(ahead time.Duration) time.Duration {
	if ahead.Abs() <= clockTolerance {
		return 0
	}
	return ahead
}

// gapUntil returns the gap of a record that is read now: its own, and the time from
// when it was last written until to (hazard 51). If to is zero, it has no end. It also returns
// when a step of the clock was last seen: now, if the clock was set since then.
//
// A record of an earlier boot is empty, and no container of that boot is live, so the
// gap begins with this boot. If the clock was set since the record was written,
// timestamps don't show what was reserved before or after that, so the gap has no
// beginning.
func (r *record) gapUntil(to time.Time, sameBoot bool, now time.Time, sinceBoot time.Duration) (g gap, stepped time.Time) {
	booted := now.Add(-sinceBoot).Round(0)
	if from := booted.Add(-clockTolerance); !sameBoot && sinceBoot != 0 {
		return gap{from, from, to}, stepped
	}
	if r.Gap.To.After(to) && !to.IsZero() && sameBoot && r.Gap.has(r.Gap.Others) {
		to = r.Gap.To // by the clock before it was set back, which an earlier Open has noticed
	}
	if sameBoot && r.Stepped > 0 {
		stepped = now.Add(-max(0, sinceBoot-r.Stepped))
	}
	step := stepOf(booted.Sub(r.Written.Add(-r.SinceBoot)))
	set := sinceBoot != 0 && r.SinceBoot != 0 && step != 0
	if set {
		stepped = now
		if step < 0 && !to.IsZero() {
			to = to.Add(-step) // by the clock before it was set back
		}
	}
	if set || !sameBoot || r.Written.After(now) {
		return gap{To: to}, stepped
	}
	g = gap{r.Gap.From, r.Gap.Others, to}
	if !r.Gap.has(g.From) {
		g.From = r.Written
	}
	if !r.Gap.has(g.Others) {
		g.Others = r.Written
	}
	return g, stepped
}
