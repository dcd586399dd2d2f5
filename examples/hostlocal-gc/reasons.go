// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// roomForReasons reports whether a last column of reasons fits beside the others without wrapping
// many of them. In a pipe it always fits.
func (a *app) roomForReasons(head []term.Column, rows [][]term.Cell, entries []*gc.Entry) bool {
	left := a.screen.Width
	if left == 0 {
		return true
	}
	for i, c := range head[:len(head)-1] {
		width := len(c.Title)
		for _, row := range rows {
			width = max(width, len(row[i].Text))
		}
		left -= width + 2
	}
	broken := 0
	for _, e := range entries {
		if len(e.Reason.Text()) > left {
			broken++
		}
	}
	return left >= 12 && 4*broken <= len(entries)
}

// Footnotes number the reasons of a table in order of appearance.
type footnotes struct {
	number map[gc.Reason]int
	order  []gc.Reason
}

func newFootnotes() *footnotes { return &footnotes{number: make(map[gc.Reason]int)} }

func (f *footnotes) mark(r gc.Reason) string {
	if _, ok := f.number[r]; !ok {
		f.order = append(f.order, r)
		f.number[r] = len(f.order)
	}
	return fmt.Sprintf("(%d)", f.number[r])
}

func (f *footnotes) text(screen term.Screen) string {
	var out strings.Builder
	for i, r := range f.order {
		fmt.Fprintln(&out, screen.Fold(screen.Paint(term.Dim, fmt.Sprintf("(%d)", i+1))+" "+r.Text()))
	}
	return out.String()
}
