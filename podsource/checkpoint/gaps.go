// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"slices"
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

func latest(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}

// emptySince returns a record without attachments that was written when the node booted.
func emptySince(now time.Time, sinceBoot time.Duration) *record {
	if sinceBoot == 0 { // unknown: all time is in its gap
		return new(record)
	}
	booted := now.Add(-sinceBoot - clockTolerance).Round(0)
	return &record{Written: booted, Gap: gap{booted, booted, booted}}
}

// gapUntil returns the gap of a record that is read now: its own, and the time from
// when it was last written until lag from now (hazard 51). If lag is zero, it has no end. It also
// returns when a step of the clock was last seen: now, if the clock was set since then.
//
// If the clock was set since the record was written, timestamps don't show what was reserved before
// or after that, so the gap has no beginning.
func (r *record) gapUntil(lag time.Duration, now time.Time, sinceBoot time.Duration) (g gap, stepped time.Time) {
	step := now.Add(-sinceBoot).Sub(r.Written.Add(-r.SinceBoot))
	if sinceBoot == 0 || r.SinceBoot == 0 || step.Abs() <= clockTolerance {
		step = 0 // or unknown
	}
	if r.Stepped > 0 {
		stepped = now.Add(r.Stepped - sinceBoot) // in the future if the time since the boot is unknown
	}
	if step != 0 {
		stepped = now
	} else if !r.Written.After(now) {
		g.From, g.Others = r.Gap.From, r.Gap.Others
		if !r.Gap.has(g.From) {
			g.From = r.Written
		}
		if !r.Gap.has(g.Others) {
			g.Others = r.Written
		}
	}
	if lag != 0 { // by the clock before it was set back, now or when an earlier Open noticed that
		g.To = latest(now.Round(0).Add(lag-min(0, step)), r.Gap.To)
	}
	return g, stepped
}
