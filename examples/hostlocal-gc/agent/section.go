// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// maxRows is how many rows a table of the page has at most. The JSON has all.
const maxRows = 512

// A section is what the page shows of a network.
type section struct {
	Name     string
	ReadOnly bool // it is not among those to release in
	Missing  bool // it has no directory
	Chips    []chip
	Total    string // since the start
	Picture  template.HTML
	Tables   []table // to be read
	Folded   []table // the rest
}

// A chip is a verdict with its number.
type chip struct {
	Class, Text string
}

// A table has a heading and rows; some may have been left out. What is alike in
// all rows needs no column.
type table struct {
	Title, Note    string
	Verdicts, Pods bool // whether there is something to tell
	Rows           []row
	Left           int
}

type row struct {
	IP, Container, Full, IfName, Age, Pod, From string
	Verdict, Reason, Rule, Error                string
}

// networksOf returns the networks of a report: those to release in, and then
// those that are only read and have reservations.
func networksOf(r *gc.Report) (all []gc.Network) {
	all = slices.Clone(r.Networks)
	for i := range r.Reservations {
		name := r.Reservations[i].Network
		if !slices.ContainsFunc(all, func(n gc.Network) bool { return n.Name == name }) {
			all = append(all, gc.Network{Name: name})
		}
	}
	return all
}

// sections are one for each network.
func sections(s *status, now time.Time) (all []section) {
	for i, network := range networksOf(&s.report) {
		n := section{Name: network.Name, Missing: network.Missing, ReadOnly: i >= len(s.report.Networks)}
		var entries []gc.Entry
		for _, e := range s.report.Reservations {
			if e.Network == network.Name {
				entries = append(entries, e)
			}
		}
		n.Chips = tally(entries)
		n.tables(entries, s.report.Started)
		if r := s.released[n.Name]; r.addresses > 0 {
			n.Total = fmt.Sprintf("%s released since the start, the last %s ago.", plural(r.addresses, "address", "addresses"), term.Age(now, r.last))
		}
		all = append(all, n)
	}
	return all
}

// tally counts the verdicts. What could not be judged has no verdict that is
// worth the name.
func tally(entries []gc.Entry) (chips []chip) {
	counts := make(map[gc.Verdict]int)
	unjudged := 0
	for i := range entries {
		if judged(&entries[i]) {
			counts[entries[i].Verdict]++
		} else {
			unjudged++
		}
	}
	for _, v := range gc.Verdicts() {
		if counts[v] > 0 {
			chips = append(chips, chip{v.String(), fmt.Sprintf("%d %s", counts[v], v)})
		}
	}
	if unjudged > 0 {
		chips = append(chips, chip{"unjudged", fmt.Sprintf("%d not judged", unjudged)})
	}
	return chips
}

func judged(e *gc.Entry) bool { return e.Reason != gc.SourceFailed && e.Reason != gc.NoPods }

// tables sorts the entries: those that somebody may want to look at, the most
// urgent first, and the rest.
func (n *section) tables(entries []gc.Entry, now time.Time) {
	look := table{Title: "Needs a person", Note: "Kept. No program can settle these."}
	kept := table{Title: "Kept, and why"}
	leaked := table{Title: "Leaked", Note: "Nobody holds these, and they are still reserved."}
	foreign := table{Title: "Foreign", Note: "Kept: of these no source here could know whether their containers live."}
	released := table{Title: "Released by the last pass"}
	inUse, unjudged := table{Title: "In use"}, table{Title: "Not judged"}
	of := func(e *gc.Entry) *table {
		if !judged(e) {
			return &unjudged
		}
		switch e.Verdict {
		case gc.InUse:
			return &inUse
		case gc.Leaked:
			return &leaked
		case gc.Foreign:
			return &foreign
		case gc.Released, gc.Gone:
			return &released
		case gc.Conflict, gc.Malformed, gc.Failed:
			return &look
		}
		return &kept
	}
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b gc.Entry) int { return cmp.Compare(urgency(a.Verdict), urgency(b.Verdict)) })
	for i := range entries {
		of(&entries[i]).add(newRow(&entries[i], now))
	}
	n.Tables = filled(look, leaked, kept, foreign, released)
	n.Folded = filled(unjudged, inUse)
}

func (t *table) add(r row) {
	if len(t.Rows) == maxRows {
		t.Left++
		return
	}
	t.Verdicts = t.Verdicts || len(t.Rows) > 0 && r.Verdict != t.Rows[0].Verdict
	t.Pods = t.Pods || r.Pod != ""
	t.Rows = append(t.Rows, r)
}

// Count is how many rows there would be.
func (t table) Count() int { return len(t.Rows) + t.Left }

// filled returns the tables that have rows.
func filled(tables ...table) []table {
	return slices.DeleteFunc(tables, func(t table) bool { return len(t.Rows) == 0 })
}

func urgency(v gc.Verdict) int {
	return slices.Index([]gc.Verdict{gc.Conflict, gc.Malformed, gc.Failed, gc.Leaked, gc.Starting, gc.Changed, gc.Young, gc.Foreign,
		gc.Released, gc.Gone, gc.InUse}, v)
}

func newRow(e *gc.Entry, now time.Time) row {
	out := row{Verdict: e.Verdict.String(), Reason: e.Reason.Text(), Rule: e.Reason.Rule()}
	if e.Pod != nil {
		out.Pod, out.From = e.Pod.String(), e.Pod.From
	}
	r := e.Reservation
	if r.Err != nil {
		out.Error = r.Err.Error()
	}
	out.IP, out.IfName, out.Full, out.Age = r.IP.String(), r.IfName, r.ContainerID, term.Age(now, r.ReservedAt)
	out.Container = term.ID(r.ContainerID)
	if r.Owner != hostlocal.Owned {
		out.Container = r.Owner.String()
	}
	return out
}
