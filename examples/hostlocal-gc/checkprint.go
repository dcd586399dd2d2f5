// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
)

// checked is the output of check. Its JSON is a contract.
type checked struct {
	SchemaVersion int                 `json:"schemaVersion"`
	Findings      []diagnose.Finding  `json:"findings"`
	NotRead       []string            `json:"notRead,omitempty"` // CNI configurations that could not be read
	Reports       []reportjson.Report `json:"reports"`           // one for each data directory
}

func (a *app) printChecked(all *checked) error {
	if a.flags.format == formatJSON {
		return writeJSON(a.stdout, all)
	}
	var out strings.Builder
	var found []string
	for _, f := range all.Findings {
		found = append(found, a.finding(f, fewItems))
	}
	fmt.Fprintln(&out, strings.Join(few(found, fewFindings), "\n"))
	for _, text := range all.NotRead {
		fmt.Fprintln(&out, a.screen.Fold("Not read: "+term.Clean(text)))
	}
	telling := slices.IndexFunc(all.Reports, func(r reportjson.Report) bool {
		return risky(r.Report) || slices.ContainsFunc(r.Report.Sources, func(s gc.SourceReport) bool { return s.Error != "" })
	})
	a.writeSources(&out, all.Reports[max(telling, 0)].Report)
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// finding returns the lines of a finding: under it some of its items, what to do, and the command that does it.
func (a *app) finding(f diagnose.Finding, items int) string {
	text := a.screen.Fold(a.screen.Paint(wordStyle(f.Word), f.Line()))
	for _, more := range append(few(f.Items, items), f.Do) {
		if !strings.Contains(f.Line(), more) { // nor if it is empty
			text += "\n" + a.indent(more)
		}
	}
	if f.Run != "" {
		text += "\n  " + term.Clean(f.Run)
	}
	return text
}

// A screen of 80 columns and 24 lines has room for these.
const fewFindings, fewItems = 6, 3

// few returns the first of some lines, and a line that counts the others.
func few(lines []string, n int) []string {
	if more := len(lines) - n; more > 1 { // counting one would be as long
		return append(lines[:n:n], fmt.Sprintf("... %d more (-o json has all)", more))
	}
	return lines
}

func (a *app) indent(text string) string {
	s := a.screen
	s.Width = max(0, s.Width-2)
	return "  " + strings.ReplaceAll(s.Fold(term.Clean(text)), "\n", "\n  ")
}

// writeSources writes what each source contributed, and what a release with them may get wrong.
func (a *app) writeSources(out *strings.Builder, r *gc.Report) {
	for _, line := range diagnose.Sources(r) {
		fmt.Fprintln(out, a.screen.Fold(line))
	}
	if risky(r) {
		fmt.Fprintln(out, a.screen.Fold(a.screen.Paint(term.Yellow, "Risk:")+" no --source netns sees the kernel's addresses here. "+
			"A container that runs although these sources do not list it (deleted by force, or its record is lost) loses its address."))
	}
}

// risky reports whether something was or can be released in the networks that are named, and the kernel was not asked.
func risky(r *gc.Report) bool {
	return !diagnose.Answered(r, "netns") && slices.ContainsFunc(r.Reservations, func(e gc.Entry) bool {
		return e.Verdict == gc.Released || e.Verdict == gc.Leaked && e.Reason != gc.NetworkNotNamed
	})
}

// wordStyle is red for what harms pods, yellow for what will.
func wordStyle(word string) term.Style {
	switch word {
	case diagnose.OK:
		return term.Green
	case diagnose.Leaked, diagnose.Conflict, diagnose.Unknown:
		return term.Yellow
	}
	return term.Red
}
