// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// plainWidth is the assumed width of a pipe.
const plainWidth = 80

// Text draws the pictures for a terminal, with one legend above them. Glyphs tell the states apart
// without colours; marked cells are in brackets.
func Text(screen term.Screen, pictures []Picture) string {
	var out strings.Builder
	writeLegend(&out, screen, pictures)
	for i := range pictures {
		p := &pictures[i]
		for n := range p.Panels {
			out.WriteByte('\n')
			p.Panels[n].text(&out, screen, p)
		}
		notes := p.notes()
		if len(p.Panels) == 0 {
			fmt.Fprintf(&out, "\n%s\n", screen.Paint(term.Bold, p.Title))
		}
		for _, note := range notes {
			fmt.Fprintln(&out, screen.Fold(note))
		}
	}
	return out.String()
}

func writeLegend(out *strings.Builder, screen term.Screen, pictures []Picture) {
	used, marked := legend(pictures)
	width := screen.Width
	if width <= 0 {
		width = plainWidth
	}
	column := 0
	add := func(glyph, painted, label string) {
		length := len(glyph) + 1 + len(label)
		switch {
		case column == 0:
		case column+3+length > width:
			out.WriteByte('\n')
			column = 0
		default:
			out.WriteString("   ")
			column += 3
		}
		out.WriteString(painted + " " + label)
		column += length
	}
	for _, s := range used {
		add(styles[s].glyph, screen.Paint(term.Style(styles[s].sgr), styles[s].glyph), s.Label())
	}
	if slices.ContainsFunc(pictures, hasBlocks) {
		add("1-9", screen.Paint(term.Style(styles[InUse].sgr), "1-9"), "tenths of a block in use")
	}
	if marked {
		add("[ ]", "[ ]", "last_reserved_ip")
	}
	out.WriteByte('\n')
}

func hasBlocks(p Picture) bool {
	return slices.ContainsFunc(p.Panels, func(p Panel) bool { return p.shift > 0 })
}

// text draws one range: heading, grid, summary.
func (p *Panel) text(out *strings.Builder, screen term.Screen, of *Picture) {
	fmt.Fprintln(out, screen.Fold(screen.Paint(term.Bold, of.Title)+"  "+p.heading()))
	width := screen.Width
	if width <= 0 {
		width = plainWidth
	}
	label := p.labelWidth()
	columns := grid
	for columns > 8 && label+2+2*columns+1 > width {
		columns /= 2
	}
	if p.shift == 0 && columns > 8 && len(p.Cells) > columns/2 {
		p.ruler(out, screen, label, columns)
	}
	rows := p.rows(columns)
	for _, row := range rows {
		fmt.Fprintf(out, "%s%s ", screen.Paint(term.Dim, row.label), strings.Repeat(" ", label-len(row.label)))
		var line strings.Builder
		open := false // after a marked cell
		for _, c := range row.cells {
			switch {
			case c != nil && c.Marked && open:
				line.WriteByte('|')
			case c != nil && c.Marked:
				line.WriteByte('[')
			case open:
				line.WriteByte(']')
			default:
				line.WriteByte(' ')
			}
			open = c != nil && c.Marked
			if c == nil {
				line.WriteByte(' ')
				continue
			}
			line.WriteString(screen.Paint(term.Style(styles[c.State].sgr), c.glyph()))
		}
		if open {
			line.WriteByte(']')
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	for _, line := range []string{p.hidden(), p.summary(of.Guessed), p.marks()} {
		if line != "" {
			fmt.Fprintln(out, screen.Fold(line))
		}
	}
}

// glyph returns the glyph of the cell's state, or for a block in use the tenths that are used.
func (c *Cell) glyph() string {
	if share := c.share(c.Counts[InUse]); c.State == InUse && share < 1 {
		return strconv.Itoa(min(9, int(math.Ceil(10*share))))
	}
	return styles[c.State].glyph
}

// ruler writes the column offsets above the grid.
func (p *Panel) ruler(out *strings.Builder, screen term.Screen, label, columns int) {
	var line strings.Builder
	for i := 0; i < columns; i += 8 {
		line.WriteString(strings.Repeat(" ", 2*i-line.Len()))
		if p.Range.First.Is4() {
			fmt.Fprintf(&line, "+%d", i)
		} else {
			fmt.Fprintf(&line, "+%x", i)
		}
	}
	fmt.Fprintf(out, "%s%s\n", strings.Repeat(" ", label+1), screen.Paint(term.Dim, line.String()))
}

// A row is a line of the grid. Cells before the range's first address are nil.
type row struct {
	label string
	cells []*Cell
}

// rows lays the cells out so that each row begins at a multiple of its size.
func (p *Panel) rows(columns int) []row {
	first := numberOf(p.Cells[0].First).over(p.shift)
	skip := int(first.lo % uint64(columns))
	base := first.minus(number{lo: uint64(skip)})
	var rows []row
	cells := make([]*Cell, skip, skip+len(p.Cells))
	for i := range p.Cells {
		cells = append(cells, &p.Cells[i])
	}
	for i := 0; i < len(cells); i += columns {
		at := base.plus(number{lo: uint64(i)}).times(p.shift)
		rows = append(rows, row{at.addr(p.Range.First).String(), cells[i:min(i+columns, len(cells))]})
	}
	return rows
}

// labelWidth returns the width of the longest row label.
func (p *Panel) labelWidth() int {
	widest := 0
	for _, r := range p.rows(8) {
		widest = max(widest, len(r.label))
	}
	return widest
}
