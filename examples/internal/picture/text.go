// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

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
