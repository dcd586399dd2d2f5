// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// attention is printed under the tables: what no pass can settle, and live pods suffer from. Check says more.
func (a *app) attention(r *result) string {
	var out strings.Builder
	p := &diagnose.Place{Report: r.Report}
	if p.Look(); r.judged {
		for _, f := range diagnose.Findings([]*diagnose.Place{p}) {
			if f.Live() || f.Word == diagnose.ReadOnly {
				a.writeFinding(&out, f, fewRows)
			}
		}
	}
	if out.Len() > 0 {
		out.WriteByte('\n')
	}
	return out.String()
}

// section is a heading with a small table under it, or nothing.
func (a *app) section(style term.Style, heading string, rows [][]term.Cell) string {
	if len(rows) == 0 {
		return ""
	}
	columns := make([]term.Column, len(rows[0])+1) // the first one indents
	indented := make([][]term.Cell, len(rows))
	for i, row := range rows {
		indented[i] = append([]term.Cell{{}}, row...)
	}
	table := a.screen.Table(columns, indented)
	_, table, _ = strings.Cut(table, "\n") // no column has a title
	return fmt.Sprintf("%s\n%s\n", a.screen.Fold(a.screen.Paint(style, heading)), table)
}
