// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// showNetwork writes the table of one network, if it has anything to show.
func (a *app) showNetwork(out *strings.Builder, r *result, network string, v view) {
	shown := slices.DeleteFunc(r.shown(), func(e *gc.Entry) bool {
		return e.Network != network || !v.only.has(e.Reservation) || e.Verdict == gc.InUse && !v.all && v.only == nil
	})
	if len(shown) == 0 {
		return
	}
	if len(r.Networks) > 1 {
		fmt.Fprintln(out, a.screen.Paint(term.Bold, "Network "+network))
	}
	fmt.Fprintln(out, a.table(r, shown))
}

// table lays out entries, with the word of each reason, and under it what these words mean. A column
// without any value is left out.
func (a *app) table(r *result, entries []*gc.Entry) string {
	entries, more := fold(entries)
	head := []term.Column{
		{Title: "ADDRESS"}, {Title: "CONTAINER"}, {Title: "AGE", Right: true},
		{Title: "VERDICT"}, {Title: "POD"}, {Title: "CAUSE"}, {Title: "REASON"},
	}
	if !r.judged {
		head = head[:3]
	}
	rows := make([][]term.Cell, len(entries))
	for i, e := range entries {
		pod, cause := "-", "-"
		if e.Pod != nil {
			pod = e.Pod.String()
		}
		if c := r.causes.Of(e); c.Known() {
			cause = string(c)
		}
		rows[i] = []term.Cell{
			{Text: e.IP.String()}, {Text: diagnose.Owner(e), Style: term.Dim}, {Text: term.Age(r.Started, e.ReservedAt)},
			{Text: e.Verdict.String(), Style: term.VerdictStyle(e.Verdict)}, {Text: pod}, {Text: cause}, {Text: e.Reason.String()},
		}[:len(head)]
		if said := slices.IndexFunc(entries, func(o *gc.Entry) bool { return o.Reason == e.Reason }); r.judged && said == i {
			more += a.screen.Fold(a.screen.Paint(term.Dim, e.Reason.String()+":")+" "+e.Reason.Text()) + "\n"
		}
	}
	for i := len(head) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(rows, func(row []term.Cell) bool { return row[i].Text != "-" }) {
			head = slices.Delete(head, i, i+1)
			for j := range rows {
				rows[j] = slices.Delete(rows[j], i, i+1)
			}
		}
	}
	return a.screen.Table(head, rows) + more
}

// fewRows is the largest number of rows that one reason has in a table.
const fewRows = 12

// fold returns the first entries of each reason, and a text that counts the others.
func fold(entries []*gc.Entry) (few []*gc.Entry, more string) {
	seen := make(map[gc.Reason]int)
	for _, e := range entries {
		if seen[e.Reason]++; seen[e.Reason] <= fewRows {
			few = append(few, e)
		}
	}
	for reason := gc.Reason(1); reason.String() != ""; reason++ {
		if n := seen[reason] - fewRows; n > 0 {
			more += fmt.Sprintf("... %d more: %s (-o json has all)\n", n, reason)
		}
	}
	return few, more
}
