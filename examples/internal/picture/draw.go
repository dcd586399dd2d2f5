// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"fmt"
	"html/template"
	"regexp"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// inlineWidth is that of Inline in columns: 16 cells and an address. It fits on a phone.
const inlineWidth = 50

// Inline draws a picture for an HTML page, as on a terminal. Its style sheet has the class "range", and
// for each style that the terminal has by the last number N of its escape sequence the class cN.
func Inline(p Picture) string {
	p.title = ""
	text := template.HTMLEscapeString(Text(term.Screen{Colour: true, Width: inlineWidth}, []Picture{p}))
	return "<pre class=\"range\">" + painted.ReplaceAllString(text, "<i class=\"c$1\">$2</i>") + "</pre>"
}

// painted is a text in a style.
var painted = regexp.MustCompile("\x1b\\[(?:7;)?(\\d+)m(.*?)\x1b\\[0m")

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
	head := strings.TrimSpace(fmt.Sprintf("%s  %s to %s", title, p.First, p.Last))
	fmt.Fprintf(out, "\n%s\n", screen.Paint(term.Bold, head))
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
