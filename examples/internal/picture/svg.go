// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// Measures of an SVG, in pixels.
const (
	side   = 20 // from cell to cell
	margin = 24
	line   = 22 // of text
	glyph  = 7  // how wide a character of the label font is, roughly
)

// SVG draws the same as Text. The result stands alone: no script, no style sheet
// or font from elsewhere, and every text escaped. Each cell has a tooltip.
func SVG(pictures []Picture) string {
	s := sheet{y: margin}
	for i := range pictures {
		for n := range pictures[i].Panels {
			s.left = max(s.left, margin+glyph*pictures[i].Panels[n].labelWidth()+12)
		}
	}
	s.left = max(s.left, margin)
	s.wide = s.left + grid*side
	s.legend(pictures)
	for i := range pictures {
		p := &pictures[i]
		for n := range p.Panels {
			s.panel(p, &p.Panels[n])
		}
		if len(p.Panels) == 0 {
			s.y += line
			s.text(margin, "h", p.Title)
		}
		for _, note := range p.notes() {
			s.text(margin, "", note)
		}
	}
	width, height := s.wide+margin, s.y+margin-line/2
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="Address ranges">
<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
.h { font-weight: 600; font-size: 15px }
.l, .g { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 11px; fill: #57606a }
.l { text-anchor: end }
.g { text-anchor: middle; pointer-events: none }
</style>
<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>
%[3]s</svg>
`, width, height, s.body.String())
}

// A sheet is an SVG that grows downwards.
type sheet struct {
	body strings.Builder
	left int // where grids begin
	wide int // where they end
	y    int // the next free line
}

// text writes a line of text and moves on. Long ones are broken.
func (s *sheet) text(x int, class, text string) {
	for _, part := range breakLines(text, (s.wide-x)/glyph) {
		s.y += line
		s.put(x, s.y-6, class, part)
	}
}

func (s *sheet) put(x, y int, class, text string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(&s.body, "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, class, escape(text))
}

func (s *sheet) legend(pictures []Picture) {
	used, marked := legend(pictures)
	x := margin
	advance := func(label string) int {
		w := side + glyph*len(label) + 18
		if x > margin && x+w > s.wide {
			x = margin
			s.y += side + 6
		}
		at := x
		x += w
		return at
	}
	for _, st := range used {
		at := advance(st.Label())
		s.cell(at, s.y, st, false, st.Label())
		s.put(at+side+2, s.y+13, "", st.Label())
	}
	if marked {
		at := advance("last_reserved_ip")
		s.cell(at, s.y, Free, true, "last_reserved_ip")
		s.put(at+side+2, s.y+13, "", "last_reserved_ip")
	}
	s.y += side
}

func (s *sheet) panel(of *Picture, p *Panel) {
	s.y += line / 2
	s.text(margin, "h", of.Title+": "+p.heading())
	s.y += 4
	for _, row := range p.rows(grid) {
		s.put(s.left-8, s.y+13, "l", row.label)
		for i, c := range row.cells {
			if c != nil {
				s.cell(s.left+i*side, s.y, c.State, c.Marked, c.tooltip())
			}
		}
		s.y += side
	}
	s.y += 2
	for _, text := range []string{p.hidden(), p.summary(of.Guessed), p.marks()} {
		if text != "" {
			s.text(margin, "", text)
		}
	}
}

// cell draws one. What needs a person's eye has its glyph too, for those who
// don't see colours.
func (s *sheet) cell(x, y int, state State, marked bool, tooltip string) {
	const size = side - 3
	st := styles[state]
	stroke := ""
	if marked {
		stroke = ` stroke="#0a0c10" stroke-width="2"`
	}
	fmt.Fprintf(&s.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=\"%s\"%s><title>%s</title></rect>\n",
		x, y, size, size, st.fill, stroke, escape(tooltip))
	if state > InUse || state == Gateway {
		fmt.Fprintf(&s.body, "<text class=\"g\" x=\"%d\" y=\"%d\" style=\"fill:%s\">%s</text>\n", x+size/2, y+12, st.ink, escape(st.glyph))
	}
}

// tooltip says what a cell stands for.
func (c *Cell) tooltip() string {
	text := c.First.String()
	if c.First == c.Last {
		text += ": " + c.State.Label()
	} else {
		var parts []string
		taken := uint64(0)
		for s := states - 1; s > Free; s-- {
			if n := c.Counts[s]; n > 0 {
				taken += uint64(n)
				parts = append(parts, fmt.Sprintf("%d %s", n, s.Label()))
			}
		}
		if free := size(c.First, c.Last).minus(number{lo: taken}); free != (number{}) {
			parts = append(parts, free.String()+" free")
		}
		text += " to " + c.Last.String() + ": " + strings.Join(parts, ", ")
	}
	if c.Marked {
		text += ", last_reserved_ip"
	}
	return text
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a bytes.Buffer takes everything
	return b.String()
}

// breakLines breaks text between words.
func breakLines(text string, width int) []string {
	var lines []string
	rest := text
	for len(rest) > width {
		at := strings.LastIndexByte(rest[:width+1], ' ')
		if at <= 0 {
			break
		}
		lines = append(lines, rest[:at])
		rest = rest[at+1:]
	}
	return append(lines, rest)
}
