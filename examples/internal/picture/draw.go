// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// Measures of an SVG, in pixels.
const (
	side  = 20       // distance of cells
	edge  = side - 3 // width and height of a cell
	glyph = 7        // approximate width of a character in labels
)

// inlineColumns is the number of cells in a row of Inline, which fits on a phone with the row's
// label.
const inlineColumns = 16

// Inline draws a picture for an HTML page, whose style sheet has the class "range" of its SVGs and the
// classes of cells, which are those of styles. Each cell has a tooltip. It quotes no name that could need
// escapes.
func Inline(p Picture) string {
	var out strings.Builder
	out.WriteString("<p>")
	for _, s := range legend(p) {
		fmt.Fprintf(&out, "<span><svg class=\"range\" width=\"%d\" height=\"%d\">%s</svg> %s &ensp;</span>\n",
			edge, edge, cell(0, 0, s, styles[s].label), styles[s].label)
	}
	out.WriteString("</p>\n")
	for i := range p.panels {
		p.panels[i].inline(&out)
	}
	paragraphs(&out, p.notes())
	return out.String()
}

func paragraphs(out *strings.Builder, notes []string) {
	for _, note := range notes {
		fmt.Fprintf(out, "<p>%s</p>\n", note)
	}
}

func (p *panel) inline(out *strings.Builder) {
	rows, notes := p.rows(inlineColumns)
	left := glyph*width(rows) + 12
	fmt.Fprintf(out, "<p><b>%s to %s</b></p>\n", p.First, p.Last)
	fmt.Fprintf(out, "<svg class=\"range\" width=\"%[1]d\" height=\"%[2]d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\">\n",
		left+inlineColumns*side, len(rows)*side)
	for y, ip := range rows {
		fmt.Fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"l\">%s</text>\n", left-8, y*side+13, ip)
		for x := range inlineColumns {
			if s := p.states[ip]; p.Contains(ip) {
				out.WriteString(cell(left+x*side, y*side, s, ip.String()+": "+styles[s].label))
			}
			ip = ip.Next()
		}
	}
	out.WriteString("</svg>\n")
	paragraphs(out, notes)
}

// cell draws a cell. States that need a person also have their glyph, for people who don't see colours.
func cell(x, y int, s state, tooltip string) string {
	st := styles[s]
	text := fmt.Sprintf("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" class=\"%s\" fill=\"%s\"><title>%s</title></rect>\n",
		x, y, edge, edge, st.class, st.fill, tooltip)
	if s > inUse || s == gateway {
		text += fmt.Sprintf("<text class=\"g %s\" x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", st.class, x+edge/2, y+12, st.ink, st.glyph)
	}
	return text
}

// Text draws pictures for a terminal, with one legend above them. Glyphs tell the states apart
// without colours.
func Text(screen term.Screen, pictures []Picture) string {
	var out strings.Builder
	var labels []string
	for _, s := range legend(pictures...) {
		whole := strings.ReplaceAll(styles[s].label, " ", "\u00a0") // Fold breaks no label
		labels = append(labels, screen.Paint(styles[s].sgr, styles[s].glyph)+"\u00a0"+whole)
	}
	fmt.Fprintln(&out, strings.ReplaceAll(screen.Fold(strings.Join(labels, "; ")), "\u00a0", " "))
	for _, p := range pictures {
		for i := range p.panels {
			p.panels[i].text(&out, screen, p.title)
		}
		if len(p.panels) == 0 {
			fmt.Fprintf(&out, "\n%s\n", screen.Paint(term.Bold, p.title))
		}
		for _, note := range p.notes() {
			fmt.Fprintln(&out, screen.Fold(note))
		}
	}
	return out.String()
}

// text draws one range: heading, grid, notes. A pipe has 80 columns.
func (p *panel) text(out *strings.Builder, screen term.Screen, title string) {
	fmt.Fprintf(out, "\n%s  %s to %s\n", screen.Paint(term.Bold, title), p.First, p.Last)
	n := 32
	rows, notes := p.rows(n)
	for n > 8 && width(rows)+2*n > cmp.Or(screen.Width, 80) {
		n /= 2
		rows, notes = p.rows(n)
	}
	ruler := strings.Repeat(" ", width(rows)+1)
	for i := 0; i < n; i += 8 {
		ruler += fmt.Sprintf("%-16s", fmt.Sprintf(map[bool]string{true: "+%d", false: "+%x"}[p.First.Is4()], i))
	}
	fmt.Fprintln(out, screen.Paint(term.Dim, strings.TrimRight(ruler, " ")))
	for _, ip := range rows {
		line := screen.Paint(term.Dim, fmt.Sprintf("%-*s", width(rows), ip))
		for range n {
			if s := styles[p.states[ip]]; p.Contains(ip) {
				line += " " + screen.Paint(s.sgr, s.glyph)
			} else {
				line += "  "
			}
			ip = ip.Next()
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	for _, note := range notes {
		fmt.Fprintln(out, screen.Fold(note))
	}
}
