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
	Sources       []sourceResult      `json:"sources,omitempty"` // those of a usual node
	NotRead       string              `json:"notRead,omitempty"` // CNI configurations that could not be read
	Risk          string              `json:"risk,omitempty"`    // what a release with these sources may get wrong
	Reports       []reportjson.Report `json:"reports"`           // one for each data directory

	lines []string // of Sources, for people
}

// sourceResult is what one source of a usual node contributed.
type sourceResult struct {
	Source  string `json:"source"`
	Used    bool   `json:"used"`
	Entries int    `json:"entries,omitempty"`
	Why     string `json:"why,omitempty"` // why it is not used
}

// sourceResults returns the result of each source that a pass asked. After one that fails no other is asked.
func sourceResults(r *gc.Report) (all []sourceResult) {
	for _, s := range r.Sources {
		why, left := diagnose.LeftOut(s.Note)
		if !left {
			why = diagnose.InFlags(s.Error)
		}
		all = append(all, sourceResult{Source: s.Name, Used: why == "", Entries: s.Entries, Why: why})
	}
	return all
}

func (a *app) printChecked(all *checked) error {
	if a.flags.format == formatJSON {
		return writeJSON(a.stdout, all)
	}
	var out strings.Builder
	shown := all.Findings[:min(len(all.Findings), fewFindings)]
	for _, f := range shown {
		a.writeFinding(&out, f, fewItems)
	}
	if more := len(all.Findings) - len(shown); more > 0 {
		fmt.Fprintf(&out, "... %d more (-o json has all)\n", more)
	}
	for line := range strings.Lines(all.NotRead) {
		fmt.Fprintln(&out, a.screen.Fold("Not read: "+term.Clean(strings.TrimSpace(line))))
	}
	if all.Risk != "" {
		fmt.Fprintln(&out, a.screen.Fold(a.screen.Paint(term.Yellow, "Risk:")+" "+all.Risk))
	}
	for _, line := range all.lines {
		fmt.Fprintln(&out, a.screen.Fold(line))
	}
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// writeFinding writes a finding, and under it some of its items, what to do, and the command that does it.
func (a *app) writeFinding(out *strings.Builder, f diagnose.Finding, items int) {
	fmt.Fprintln(out, a.screen.Fold(a.screen.Paint(wordStyle(f.Word), f.Line())))
	for _, item := range few(f.Items, items) {
		if !strings.Contains(f.Line(), item) {
			fmt.Fprintln(out, a.indent(item))
		}
	}
	if f.Do != "" {
		fmt.Fprintln(out, a.indent(f.Do))
	}
	if f.Run != "" {
		fmt.Fprintln(out, "  "+term.Clean(f.Run))
	}
}

// A screen of 80 columns and 24 lines has room for these.
const fewFindings, fewItems = 6, 3

// few returns the first of some lines, and a line that counts the others.
func few(lines []string, n int) []string {
	if more := len(lines) - n; more > 1 {
		return append(lines[:n:n], fmt.Sprintf("... %d more (-o json has all)", more))
	}
	return lines
}

// indent folds a line of text, and indents it.
func (a *app) indent(text string) string {
	s := a.screen
	s.Width = max(0, s.Width-2)
	return "  " + strings.ReplaceAll(s.Fold(term.Clean(text)), "\n", "\n  ")
}

// risk says what a release may get wrong because the kernel was not asked. It is empty if it was.
func risk(r *gc.Report) string {
	for _, s := range r.Sources {
		if _, left := diagnose.LeftOut(s.Note); s.Name == "netns" && !left && s.Error == "" {
			return ""
		}
	}
	if !slices.ContainsFunc(r.Reservations, func(e gc.Entry) bool {
		return e.Verdict == gc.Released || e.Verdict == gc.Leaked && e.Reason != gc.NetworkNotNamed
	}) {
		return ""
	}
	return "no --source netns sees the kernel's addresses here. A container that runs although these sources do not list it " +
		"(deleted by force, or its record is lost) loses its address."
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
