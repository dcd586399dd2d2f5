// SPDX-License-Identifier: Apache-2.0

package term

import "strings"

// A Column is the head of a table's column.
type Column struct {
	Title string
	Right bool // aligned to the right, as numbers are
}

// A Cell is one field of a table, and how it looks.
type Cell struct {
	Text  string
	Style Style
}

const (
	gap = "  " // between columns

	// leastWrap is how narrow the last column may get. On a screen that leaves
	// less, the terminal breaks the lines as it likes.
	leastWrap = 12
)

// Table lays out rows under their columns. A row may have fewer cells than there
// are columns. The last column is wrapped to the screen's width.
//
// Text is padded first and coloured then, so escape sequences count for nothing
// and a coloured table is the plain one once they are taken out.
func (s Screen) Table(head []Column, rows [][]Cell) string {
	if len(head) == 0 {
		return ""
	}
	titles := make([]Cell, len(head))
	for i, c := range head {
		titles[i] = Cell{c.Title, Bold}
	}
	lines := [][]Cell{titles}
	for _, row := range rows {
		line := make([]Cell, len(head))
		for i := range min(len(row), len(head)) {
			line[i] = Cell{Clean(row[i].Text), row[i].Style}
		}
		lines = append(lines, line)
	}

	widths := make([]int, len(head))
	for _, line := range lines {
		for i, c := range line {
			widths[i] = max(widths[i], columns(c.Text))
		}
	}
	last := len(head) - 1
	left := s.Width
	for _, w := range widths[:last] {
		left -= w + len(gap)
	}
	wraps := left >= leastWrap
	if wraps {
		widths[last] = min(widths[last], left)
	}
	var out strings.Builder
	for _, line := range lines {
		parts := []string{line[last].Text}
		if wraps {
			parts = strings.Split(Screen{Width: left}.Fold(line[last].Text), "\n")
		}
		for _, part := range parts {
			line[last].Text = part
			s.line(&out, head, widths, line)
			clear(line[:last]) // what goes on below is the last column alone
		}
	}
	return out.String()
}

// line writes one line of a table. Padding waits for text to come after it, so
// that no line ends in blanks.
func (s Screen) line(out *strings.Builder, head []Column, widths []int, cells []Cell) {
	blanks := 0
	for i, c := range cells {
		pad := max(0, widths[i]-columns(c.Text)) // a long word may be wider than its column
		if head[i].Right {
			blanks += pad
			pad = 0
		}
		if c.Text != "" {
			out.WriteString(strings.Repeat(" ", blanks))
			out.WriteString(s.Paint(c.Style, c.Text))
			blanks = 0
		}
		blanks += pad + len(gap)
	}
	out.WriteByte('\n')
}
