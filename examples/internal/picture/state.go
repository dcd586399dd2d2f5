// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"net/netip"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A State is what a cell shows. Of several states in a cell the greatest is shown, so that what
// needs a person is never hidden.
type State uint8

const (
	Free     State = iota
	Gateway        // never handed out
	InUse          // held by a live pod
	Unjudged       // reserved, and the sources gave no valid answer
	Young          // young or starting: may be in use
	Foreign        // no source could know its owner
	Leaked         // nobody holds it
	Conflict       // needs a person: in conflict, malformed, or failed
	states         // number of states
)

// style is the look of a state. Glyphs tell the states apart without colours.
type style struct {
	label string
	glyph string
	class string // in an SVG
	sgr   string // for a terminal
	fill  string // for an SVG
	ink   string // for a glyph on fill
}

var styles = [states]style{
	Free:     {"free", ".", "free", "2", "#eef1f4", "#6b7683"},
	Gateway:  {"gateway", "g", "gateway", "2", "#c9d1d9", "#24292f"},
	InUse:    {"in use", "#", "in-use", "7;32", "#2da44e", "#ffffff"},
	Unjudged: {"reserved, not judged", "?", "unjudged", "7;36", "#54a3d8", "#08233a"},
	Young:    {"young or starting", "o", "young", "7;33", "#e3b341", "#3d2c00"},
	Foreign:  {"foreign", "f", "foreign", "7;34", "#0f5c73", "#ffffff"},
	Leaked:   {"leaked", "x", "leaked", "7;35", "#a371f7", "#1b0a3a"},
	Conflict: {"conflict, malformed or failed", "!", "conflict", "7;31", "#cf222e", "#ffffff"},
}

// Label returns the state's name in a legend, such as "in use".
func (s State) Label() string { return styles[s].label }

// A Reservation is an address that is not free.
type Reservation struct {
	IP    netip.Addr
	State State
}

// FromReport returns a network's reservations after the pass of a report.
func FromReport(r *gc.Report, network string) []Reservation {
	var out []Reservation
	for i := range r.Reservations {
		e := &r.Reservations[i]
		if e.Reservation == nil || e.Network != network {
			continue
		}
		if s := stateOf(e); s != Free {
			out = append(out, Reservation{e.IP, s})
		}
	}
	return out
}

func stateOf(e *gc.Entry) State {
	if e.Reason == gc.SourceFailed {
		return Unjudged
	}
	switch e.Verdict {
	case gc.InUse:
		return InUse
	case gc.Young, gc.Starting, gc.Changed: // a changed file is a new ADD's
		return Young
	case gc.Foreign:
		return Foreign
	case gc.Leaked:
		return Leaked
	case gc.Released, gc.Gone:
		return Free
	default:
		return Conflict
	}
}
