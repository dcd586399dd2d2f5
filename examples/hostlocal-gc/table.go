// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// showNetwork writes the table of one network.
func (a *app) showNetwork(out *strings.Builder, r *result, network string, v view) {
	several := len(r.Networks) > 1
	if several {
		fmt.Fprintf(out, "%s\n", a.screen.Paint(term.Bold, "Network "+network))
	}
	shown := slices.DeleteFunc(r.entries(network), func(e *gc.Entry) bool { return !v.all && e.Verdict == gc.InUse })
	if len(shown) > 0 {
		out.WriteString(a.table(r, shown))
	} else if several {
		fmt.Fprintln(out, a.screen.Paint(term.Dim, "nothing to show"))
	}
	if len(shown) > 0 || several {
		out.WriteByte('\n')
	}
}

// A column of the table: its title, and its cell for an entry.
type column struct {
	term.Column
	cell func(*gc.Entry) term.Cell
}

// table lays out entries, with the word of each reason. Under it is what these words mean.
func (a *app) table(r *result, entries []*gc.Entry) string {
	entries, more := a.fold(r, entries)
	columns := whatColumns(r.Started)
	if r.judged {
		columns = append(columns, verdictColumns(r.causes)...)
	}
	columns = slices.DeleteFunc(columns, func(c column) bool { // without any value
		return !slices.ContainsFunc(entries, func(e *gc.Entry) bool { return c.cell(e).Text != "-" })
	})
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
	if !r.judged {
		return a.screen.Table(head, rows) + more
	}
	var meanings string
	for i, e := range entries {
		rows[i] = append(rows[i], term.Cell{Text: e.Reason.String()})
		if slices.IndexFunc(entries, func(o *gc.Entry) bool { return o.Reason == e.Reason }) == i {
			meanings += a.screen.Fold(a.screen.Paint(term.Dim, e.Reason.String()+":")+" "+e.Reason.Text()) + "\n"
		}
	}
	return a.screen.Table(append(head, term.Column{Title: "REASON"}), rows) + more + meanings
}

// fewRows is the largest number of rows that one reason has in a table.
const fewRows = 12

// fold returns the first entries of each reason, and a text that counts the others.
func (a *app) fold(r *result, entries []*gc.Entry) (few []*gc.Entry, more string) {
	type kind struct {
		reason gc.Reason
		pod    bool
	}
	all, seen := make(map[kind]int), make(map[kind]int)
	for _, e := range entries {
		all[kind{e.Reason, e.Pod != nil}]++
	}
	var out strings.Builder
	for _, e := range entries {
		k := kind{e.Reason, e.Pod != nil}
		seen[k]++
		switch what := ""; {
		case seen[k] <= fewRows || all[k] == fewRows+1: // the line that counts would be as long as the row
			few = append(few, e)
		case seen[k] == fewRows+1:
			if r.judged {
				what = fmt.Sprintf(" %s: %s", e.Verdict, e.Reason)
			}
			fmt.Fprintln(&out, a.screen.Fold(fmt.Sprintf("... %d more%s (-o json has all)", all[k]-fewRows, what)))
		}
	}
	return few, out.String()
}

// whatColumns describe the reservation.
func whatColumns(now time.Time) []column {
	return []column{
		{term.Column{Title: "ADDRESS"}, func(e *gc.Entry) term.Cell { return term.Cell{Text: e.IP.String()} }},
		{term.Column{Title: "CONTAINER"}, func(e *gc.Entry) term.Cell { return term.Cell{Text: container(e), Style: term.Dim} }},
		{term.Column{Title: "AGE", Right: true}, func(e *gc.Entry) term.Cell { return term.Cell{Text: term.Age(now, e.ReservedAt)} }},
	}
}

// verdictColumns describe the decision, and why something leaked where that is known.
func verdictColumns(causes diagnose.Causes) []column {
	return []column{
		{term.Column{Title: "VERDICT"}, func(e *gc.Entry) term.Cell {
			return term.Cell{Text: e.Verdict.String(), Style: term.VerdictStyle(e.Verdict)}
		}},
		{term.Column{Title: "POD"}, func(e *gc.Entry) term.Cell {
			if e.Pod == nil {
				return term.Cell{Text: "-"}
			}
			return term.Cell{Text: e.Pod.String()}
		}},
		{term.Column{Title: "CAUSE"}, func(e *gc.Entry) term.Cell {
			if cause := causes.Of(e); cause.Known() {
				return term.Cell{Text: string(cause)}
			}
			return term.Cell{Text: "-", Style: term.Dim}
		}},
	}
}

// container returns the owner in the file, cut as other tools cut it, or what the file has instead.
func container(e *gc.Entry) string {
	if e.Owner != hostlocal.Owned {
		return "(" + e.Owner.String() + ")"
	}
	return term.ID(e.ContainerID)
}
