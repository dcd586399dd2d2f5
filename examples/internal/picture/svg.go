// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"strings"
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
