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
// classes of cells, which are their states: free, gateway, in-use, unjudged, young, foreign, leaked,
// conflict. Each cell has a tooltip. It quotes no name that could need escapes.
func Inline(p Picture) string {
	var out strings.Builder
	out.WriteString("<p>")
	for _, s := range legend([]Picture{p}) {
		fmt.Fprintf(&out, "<span><svg class=\"range\" width=\"%d\" height=\"%d\">%s</svg> %s &ensp;</span>\n",
			edge, edge, cell(0, 0, s, s.Label()), s.Label())
	}
	out.WriteString("</p>\n")
	for i := range p.Panels {
		p.Panels[i].inline(&out, p.Guessed)
	}
	for _, note := range p.notes() {
		fmt.Fprintf(&out, "<p>%s</p>\n", note)
	}
	return out.String()
}

func (p *Panel) inline(out *strings.Builder, guessed bool) {
	rows, _ := p.rows(inlineColumns)
	left := glyph*width(rows) + 12
	fmt.Fprintf(out, "<p><b>%s to %s</b></p>\n", p.Range.First, p.Range.Last)
	fmt.Fprintf(out, "<svg class=\"range\" width=\"%[1]d\" height=\"%[2]d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\">\n",
		left+inlineColumns*side, len(rows)*side)
	for y, ip := range rows {
		fmt.Fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"l\">%s</text>\n", left-8, y*side+13, ip)
		for x := range inlineColumns {
			if s := p.States[ip]; p.Range.Contains(ip) {
				out.WriteString(cell(left+x*side, y*side, s, ip.String()+": "+s.Label()))
			}
			ip = ip.Next()
		}
	}
	out.WriteString("</svg>\n")
	for _, note := range p.notes(guessed, inlineColumns) {
		fmt.Fprintf(out, "<p>%s</p>\n", note)
	}
}

// cell draws a cell. States that need a person also have their glyph, for people who don't see colours.
func cell(x, y int, s State, tooltip string) string {
	st := styles[s]
	text := fmt.Sprintf("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" class=\"%s\" fill=\"%s\"><title>%s</title></rect>\n",
		x, y, edge, edge, st.class, st.fill, tooltip)
	if s > InUse || s == Gateway {
		text += fmt.Sprintf("<text class=\"g %s\" x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", st.class, x+edge/2, y+12, st.ink, st.glyph)
	}
	return text
}

// Text draws the pictures for a terminal, with one legend above them. Glyphs tell the states apart
// without colours.
func Text(screen term.Screen, pictures []Picture) string {
	var out strings.Builder
	var labels []string
	for _, s := range legend(pictures) {
		whole := strings.ReplaceAll(s.Label(), " ", "\u00a0") // Fold breaks no label
		labels = append(labels, screen.Paint(term.Style(styles[s].sgr), styles[s].glyph)+"\u00a0"+whole)
	}
	fmt.Fprintln(&out, strings.ReplaceAll(screen.Fold(strings.Join(labels, "; ")), "\u00a0", " "))
	for i := range pictures {
		p := &pictures[i]
		for n := range p.Panels {
			out.WriteByte('\n')
			p.Panels[n].text(&out, screen, p)
		}
		if len(p.Panels) == 0 {
			fmt.Fprintf(&out, "\n%s\n", screen.Paint(term.Bold, p.Title))
		}
		for _, note := range p.notes() {
			fmt.Fprintln(&out, screen.Fold(note))
		}
	}
	return out.String()
}

// text draws one range: heading, grid, notes. A pipe has 80 columns.
func (p *Panel) text(out *strings.Builder, screen term.Screen, of *Picture) {
	fmt.Fprintf(out, "%s  %s to %s\n", screen.Paint(term.Bold, of.Title), p.Range.First, p.Range.Last)
	n := 32
	rows, _ := p.rows(n)
	for n > 8 && width(rows)+2*n > cmp.Or(screen.Width, 80) {
		n /= 2
		rows, _ = p.rows(n)
	}
	label := width(rows)
	ruler := strings.Repeat(" ", label+1)
	for i := 0; i < n; i += 8 {
		ruler += fmt.Sprintf("%-16s", fmt.Sprintf(map[bool]string{true: "+%d", false: "+%x"}[p.Range.First.Is4()], i))
	}
	fmt.Fprintln(out, screen.Paint(term.Dim, strings.TrimRight(ruler, " ")))
	for _, ip := range rows {
		line := screen.Paint(term.Dim, fmt.Sprintf("%-*s", label, ip))
		for range n {
			if s := styles[p.States[ip]]; p.Range.Contains(ip) {
				line += " " + screen.Paint(term.Style(s.sgr), s.glyph)
			} else {
				line += "  "
			}
			ip = ip.Next()
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	for _, line := range p.notes(of.Guessed, n) {
		fmt.Fprintln(out, screen.Fold(line))
	}
}
