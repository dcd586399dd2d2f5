// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/reportjson"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// checked is the output of check. Its JSON is a contract.
type checked struct {
	SchemaVersion int                 `json:"schemaVersion"`
	Findings      []finding           `json:"findings"`
	Sources       []sourceResult      `json:"sources,omitempty"` // those of a usual node
	NotRead       string              `json:"notRead,omitempty"` // CNI configurations that could not be read
	Reports       []reportjson.Report `json:"reports"`           // one for each data directory
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
		why, left := leftOut(s.Note)
		if !left {
			why = flagWords.Replace(s.Error)
		}
		all = append(all, sourceResult{Source: s.Name, Used: why == "", Entries: s.Entries, Why: why})
	}
	return all
}

func (a *app) printChecked(all *checked) error {
	if a.flags.format == formatJSON {
		return reportjson.Write(a.stdout, all)
	}
	var out strings.Builder
	for _, f := range all.Findings {
		text := f.Word + ": "
		if f.Network != "" {
			text += f.Network + ": "
		}
		text += term.Clean(f.Text)
		if f.Run != "" {
			text += ": run"
		}
		fmt.Fprintln(&out, a.screen.Fold(a.screen.Paint(wordStyle(f.Word), text)))
		if f.Run != "" {
			fmt.Fprintln(&out, "  "+term.Clean(f.Run))
		}
	}
	if len(all.Sources) > 0 {
		out.WriteByte('\n')
		rows := make([][]term.Cell, len(all.Sources))
		for i, s := range all.Sources {
			rows[i] = []term.Cell{{Text: s.Source}, {Text: term.Count(s.Entries, "entry")}, {Text: s.Why, Style: term.Dim}}
			if !s.Used {
				rows[i][1] = term.Cell{Text: "not used", Style: term.Yellow}
			}
			if s.Why != "" && slices.ContainsFunc(all.Findings, func(f finding) bool { return strings.Contains(f.Text, s.Why) }) {
				rows[i][2].Text = "see above"
			}
		}
		out.WriteString(a.screen.Table([]term.Column{{Title: "SOURCE"}, {Title: "ANSWER"}, {Title: ""}}, rows))
	}
	for line := range strings.Lines(all.NotRead) {
		fmt.Fprintln(&out, a.screen.Fold("Not read: "+term.Clean(strings.TrimSpace(line))))
	}
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// wordStyle is red for what harms pods, yellow for what will.
func wordStyle(word string) term.Style {
	switch word {
	case wordOK:
		return term.Green
	case wordLeaked, wordConflict, wordUnknown:
		return term.Yellow
	}
	return term.Red
}
