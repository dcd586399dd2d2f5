// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// showReport writes the table of one network, and under it what a person has to
// look at.
func (a *app) showReport(out *strings.Builder, r *gc.Report, judged, several bool, v view) {
	if several {
		fmt.Fprintf(out, "%s\n", a.screen.Paint(term.Bold, "Network "+r.Network))
	}
	var shown []*gc.Entry
	for i := range r.Reservations {
		if e := &r.Reservations[i]; v.inUse || e.Verdict != gc.InUse {
			shown = append(shown, e)
		}
	}
	if len(shown) > 0 {
		out.WriteString(a.table(r, shown, judged))
	} else if several {
		fmt.Fprintln(out, a.screen.Paint(term.Dim, "nothing to show"))
	}
	if len(shown) > 0 || several {
		out.WriteByte('\n')
	}
	out.WriteString(a.conflicts(r))
}

// A column of the table: its head, and its cell for an entry.
type column struct {
	term.Column
	cell func(*gc.Entry) term.Cell
}

// table lays out entries. The reasons are the last column where the screen has
// room for them, else they are numbered and explained under the table.
func (a *app) table(r *gc.Report, entries []*gc.Entry, judged bool) string {
	wide := a.flags.format == formatWide
	columns := whatColumns(r.Started, wide)
	if judged {
		columns = append(columns, verdictColumns(wide)...)
	}
	head := make([]term.Column, len(columns))
	for i, c := range columns {
		head[i] = c.Column
	}
	rows := make([][]term.Cell, len(entries))
	for i, e := range entries {
		for _, c := range columns {
			rows[i] = append(rows[i], c.cell(e))
		}
	}
	if !judged {
		return a.screen.Table(head, rows)
	}
	head = append(head, term.Column{Title: "REASON"})
	notes := newFootnotes()
	if !a.roomForReasons(head, rows, entries) {
		for i, e := range entries {
			rows[i] = append(rows[i], term.Cell{Text: notes.mark(e.Reason)})
		}
		return a.screen.Table(head, rows) + notes.text(a.screen)
	}
	for i, e := range entries {
		rows[i] = append(rows[i], term.Cell{Text: e.Reason.String()})
	}
	return a.screen.Table(head, rows)
}

// whatColumns say what is reserved.
func whatColumns(now time.Time, wide bool) []column {
	columns := []column{
		{term.Column{Title: "ADDRESS"}, func(e *gc.Entry) term.Cell { return term.Cell{Text: e.IP.String()} }},
		{term.Column{Title: "CONTAINER"}, func(e *gc.Entry) term.Cell {
			return term.Cell{Text: container(e.Reservation, wide), Style: term.Dim}
		}},
	}
	if wide {
		columns = append(columns, column{term.Column{Title: "IFNAME"}, func(e *gc.Entry) term.Cell {
			return term.Cell{Text: orDash(e.IfName), Style: term.Dim}
		}})
	}
	return append(columns, column{term.Column{Title: "AGE", Right: true}, func(e *gc.Entry) term.Cell {
		return term.Cell{Text: term.Age(now, e.ReservedAt)}
	}})
}

// verdictColumns say what was decided.
func verdictColumns(wide bool) []column {
	columns := []column{{term.Column{Title: "VERDICT"}, func(e *gc.Entry) term.Cell {
		return term.Cell{Text: e.Verdict.String(), Style: term.VerdictStyle(e.Verdict)}
	}}}
	if wide {
		columns = append(columns, column{term.Column{Title: "RULE"}, func(e *gc.Entry) term.Cell {
			return term.Cell{Text: e.Reason.Rule(), Style: term.Dim}
		}})
	}
	return append(columns, column{term.Column{Title: "POD"}, func(e *gc.Entry) term.Cell {
		return term.Cell{Text: podName(e.Pod)}
	}})
}

// container is the owner as the file has it, or what the file has instead.
func container(r *hostlocal.Reservation, whole bool) string {
	switch {
	case r.Owner != hostlocal.Owned:
		return "(" + r.Owner.String() + ")"
	case whole:
		return r.ContainerID
	}
	return term.ID(r.ContainerID)
}

// podName names a pod for people, with what is known of it, as the JSON does.
func podName(p *podsource.Pod) string {
	switch {
	case p == nil:
		return "-"
	case p.Name != "":
		return p.NamespacedName.String()
	case p.UID != "":
		return string(p.UID)
	case len(p.ContainerIDs) > 0:
		return term.ID(p.ContainerIDs[0])
	case len(p.IPs) > 0:
		return "with " + p.IPs[0].String()
	}
	return "without a name"
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
