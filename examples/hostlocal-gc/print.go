// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
)

// print shows a result, or only what is selected of it and what the sources say of that.
func (a *app) print(r *result, only selection) error {
	if a.flags.format == formatJSON {
		cause := func(e *gc.Entry) string { return string(r.causes.Of(e)) }
		return reportjson.Report{Report: &r.Report, Cause: cause}.Write(a.stdout)
	}
	if nothingListed := len(r.Networks) == 0 && r.Err != nil; nothingListed {
		return nil // the error says why
	}
	var out strings.Builder
	for _, n := range r.Networks {
		if !slices.Contains(r.Missing, n) && (r.judged || a.flags.all) {
			a.showNetwork(&out, r, n, only)
		}
	}
	for _, ip := range only {
		out.WriteString(a.of(ip, r))
	}
	if only == nil {
		out.WriteString(a.attention(r))
		a.writeSources(&out, &r.Report)
		if text := r.causes.Line(r.shown()); text != "" {
			fmt.Fprintln(&out, a.screen.Fold(text))
		}
		fmt.Fprintln(&out, a.screen.Fold(a.sentence(r)))
	}
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// writeJSON writes indented JSON, without characters that may change what a terminal shows.
func writeJSON(w io.Writer, v any) error {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	lines := strings.Split(text.String(), "\n")
	for i := range lines {
		lines[i] = term.Clean(lines[i])
	}
	_, err2 := io.WriteString(w, strings.Join(lines, "\n"))
	return errors.Join(err, err2)
}

// attention is printed under the tables: what no pass can settle, and live pods suffer from. Check says more.
func (a *app) attention(r *result) string {
	var out strings.Builder
	p := &diagnose.Place{Report: r.Report}
	if p.Look(); r.judged {
		for _, f := range diagnose.Findings([]*diagnose.Place{p}) {
			if f.Live() || f.Word == diagnose.ReadOnly {
				fmt.Fprintln(&out, a.finding(f, fewRows))
			}
		}
	}
	if out.Len() > 0 {
		out.WriteByte('\n')
	}
	return out.String()
}

// section is a heading with a small table under it, or nothing.
func (a *app) section(heading string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = term.Clean(row[i])
		}
		fmt.Fprintln(table, "  "+strings.Join(row, "\t"))
	}
	_ = table.Flush() // which a builder does not fail
	return fmt.Sprintf("%s\n%s\n", a.screen.Fold(a.screen.Paint(term.Bold, heading)), &out)
}

func (a *app) sentence(r *result) string {
	which := fmt.Sprintf("%d networks", len(r.Networks))
	switch len(r.Networks) {
	case 0:
		return fmt.Sprintf("No network has a directory in %s.", a.flags.dataDir)
	case 1:
		which = r.Networks[0]
	}
	text := which + ", " + diagnose.Counts(a.screen, r.shown()) + "."
	if r.judged && !r.released {
		text += " Nothing was released: this is a plan."
	}
	if r.judged {
		text += a.nextCheck(&r.Report, r.released)
	}
	return text
}

// nextCheck says when a second pass is worthwhile, counted from this one, whose own duration is
// negligible. Ages are taken at the date of the oldest list, so if that is a file, a second pass
// with the same file releases nothing more. A wait for what has no trusted timestamp goes on in the
// next pass only if a release noted when it was first seen.
func (a *app) nextCheck(r *gc.Report, released bool) string {
	if r.NextCheck.IsZero() {
		return ""
	}
	waits, seen := 0, 0
	for e := range diagnose.Entries(r) {
		switch {
		case e.Reason == gc.UntrustedTimestamp:
			seen++
		case e.Verdict == gc.Young || e.Verdict == gc.Starting:
			waits++
		}
	}
	if noted := released && a.flags.memoryFile() != "" && r.Memory == ""; waits == 0 && seen > 0 && !noted {
		return fmt.Sprintf(" The wait of %s begins with a release, unless it has --memory none.", term.Count(seen, "reservation"))
	}
	oldest := gc.SourceReport{AsOf: r.Started}
	for _, s := range r.Sources {
		old := s.Name == "file" || s.AsOf.Before(r.Started.Add(-time.Minute))
		if old && !s.AsOf.IsZero() && s.AsOf.Before(oldest.AsOf) {
			oldest = s
		}
	}
	if oldest.Name != "" {
		return fmt.Sprintf(" Ages are taken at the date of %s (%s ago): make it again before a second pass.", oldest.Name, term.Age(r.Started, oldest.AsOf))
	}
	if !r.NextCheck.After(r.Started.Add(time.Second)) {
		return " A second pass is worthwhile now."
	}
	return fmt.Sprintf(" A second pass is worthwhile in %s.", term.Age(r.NextCheck, r.Started))
}

// showNetwork writes the table of one network, if it has anything to show.
func (a *app) showNetwork(out *strings.Builder, r *result, network string, only selection) {
	shown := slices.DeleteFunc(r.shown(), func(e *gc.Entry) bool {
		return e.Network != network || !only.has(e.Reservation) || e.Verdict == gc.InUse && !a.flags.all && only == nil
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
