// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// maxRows is how many rows a table of the page has at most. The JSON has all.
const maxRows = 512

// A section is what the page shows of a network.
type section struct {
	Name    string
	Chips   []chip
	Pass    string // the last one, in a sentence
	Total   string // all since the start
	Refused bool
	Error   string
	Picture template.HTML
	Tables  []table // to be read
	Folded  []table // the rest
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
	IP, Container, Full, IfName, Age, Pod string
	Verdict, Reason, Rule, Error          string
}

func newSection(s *state, now time.Time) section {
	r := &s.report
	n := section{Name: s.network, Refused: s.refused, Pass: lastPass(r, now), Total: total(s, now)}
	if s.err != nil {
		n.Error = s.err.Error()
	}
	n.Chips = tally(r)
	n.tables(r)
	return n
}

// tally counts the verdicts of reports. What could not be judged has no verdict
// that is worth the name.
func tally(reports ...*gc.Report) (chips []chip) {
	counts := make(map[gc.Verdict]int)
	unjudged := 0
	for _, r := range reports {
		for i := range r.Reservations {
			if e := &r.Reservations[i]; judged(e) {
				counts[e.Verdict]++
			} else {
				unjudged++
			}
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

func judged(e *gc.Entry) bool {
	return e.Reason != gc.NoAnswer && e.Reason != gc.EmptyView && e.Reason != gc.NotJudged
}

// tables sorts the entries: those that somebody may want to look at, the most
// urgent first, and the rest.
func (n *section) tables(r *gc.Report) {
	look := table{Title: "Needs a person", Note: "Kept. No program can settle these."}
	kept := table{Title: "Kept, and why"}
	leaked := table{Title: "Leaked", Note: "Nobody holds these, and they are still reserved."}
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
		case gc.Released, gc.Gone:
			return &released
		case gc.Conflict, gc.Malformed, gc.Failed:
			return &look
		}
		return &kept
	}
	entries := slices.Clone(r.Reservations)
	slices.SortStableFunc(entries, func(a, b gc.Entry) int { return cmp.Compare(urgency(a.Verdict), urgency(b.Verdict)) })
	for i := range entries {
		of(&entries[i]).add(newRow(&entries[i], r.Started))
	}
	n.Tables = filled(look, leaked, kept, released)
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
	return slices.Index([]gc.Verdict{gc.Conflict, gc.Malformed, gc.Failed, gc.Leaked, gc.Starting, gc.Changed, gc.Young, gc.Released, gc.Gone, gc.InUse}, v)
}

func newRow(e *gc.Entry, now time.Time) row {
	out := row{Verdict: e.Verdict.String(), Reason: e.Reason.String(), Rule: e.Reason.Rule(), Pod: podName(e.Pod)}
	if e.Err != nil {
		out.Error = e.Err.Error()
	}
	if r := e.Reservation; r != nil {
		out.IP, out.IfName, out.Full, out.Age = r.IP.String(), r.IfName, r.ContainerID, term.Age(now, r.ReservedAt)
		out.Container = term.ID(r.ContainerID)
		if r.Owner != hostlocal.Owned {
			out.Container = r.Owner.String()
		}
	}
	return out
}

// lastPass says when the last pass was, and when the next is worth it.
func lastPass(r *gc.Report, now time.Time) string {
	text := fmt.Sprintf("Last pass %s ago, at %s; it took %s", term.Age(now, r.Started), stamp(r.Started), roughly(r.Duration))
	if r.LockHeld > 0 {
		text += fmt.Sprintf(", and held the plugin's lock for %s at most at once", roughly(r.LongestHold))
	}
	text += "."
	if !r.NextCheck.IsZero() {
		if in := r.NextCheck.Sub(now); in > time.Second {
			text += " A second look is worth it in " + term.Age(r.NextCheck, now) + "."
		} else {
			text += " A second look is worth it now."
		}
	}
	return text
}

// total is what was done since the process started.
func total(s *state, now time.Time) string {
	text := plural(s.passes, "pass", "passes") + " since the start, "
	if s.released == 0 {
		return text + "nothing released."
	}
	return text + fmt.Sprintf("%s released, the last %s ago.", plural(s.released, "address", "addresses"), term.Age(now, s.lastRelease))
}

func roughly(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// remarks are what the reports say of addresses beside the reservations. Each
// pass sees all pods, so those of several networks say much the same.
func remarks(states []state) (lines []string) {
	seen := make(map[string]bool)
	add := func(text string) {
		if !seen[text] {
			seen[text] = true
			lines = append(lines, text)
		}
	}
	for i := range states {
		for _, d := range states[i].report.Duplicates {
			names := make([]string, len(d.Pods))
			for i, p := range d.Pods {
				names[i] = podName(p)
			}
			add("Several live pods have " + d.IP.String() + ": " + strings.Join(names, ", ") + ".")
		}
	}
	for i := range states {
		for _, u := range states[i].report.Unreserved {
			add(u.IP.String() + " of " + podName(u.Pod) + " has no reservation: host-local may hand it out again.")
		}
	}
	if left := len(lines) - maxRows; left > 0 {
		lines = append(lines[:maxRows], fmt.Sprintf("%d more are in the JSON.", left))
	}
	return lines
}

// podName names a pod for people, with what is known of it.
func podName(p *podsource.Pod) string {
	switch {
	case p == nil:
		return ""
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
