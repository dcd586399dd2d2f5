// SPDX-License-Identifier: Apache-2.0

package term

import "strings"

// A Column is the heading of a table's column.
type Column struct {
	Title string
	Right bool // aligned to the right, for numbers
}

// A Cell is one field of a table.
type Cell struct {
	Text  string
	Style Style
}

const (
	gap = "  " // space between columns

	// leastWrap is the smallest width of the last column. On narrower screens the terminal breaks
	// the lines.
	leastWrap = 12
)

// Table formats rows under their columns. A row may have fewer cells than columns. The last column
// is wrapped to the screen's width.
//
// Text is padded before it is coloured, so escape sequences don't count, and a coloured table
// without them is equal to the plain one.
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
			clear(line[:last]) // continued lines have the last column only
		}
	}
	return out.String()
}

// line writes one line of a table. It pads a cell only before further text, so that no line ends in
// blanks.
func (s Screen) line(out *strings.Builder, head []Column, widths []int, cells []Cell) {
	blanks := 0
	for i, c := range cells {
		pad := max(0, widths[i]-columns(c.Text)) // a long word may exceed its column
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
