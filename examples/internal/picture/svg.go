// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// Measures of an SVG, in pixels.
const (
	side   = 20 // distance of cells
	margin = 24 // of a file; a page has its own
	border = 2  // of a marked cell
	line   = 22 // of text
	glyph  = 7  // approximate width of a character in labels
	large  = 9  // approximate width of a character in headings
)

// inlineColumns is the number of cells in a row of Inline, which fits on a phone with the row's
// label.
const inlineColumns = 16

// SVG draws the same as Text. The result is self-contained: it has no script and no external style
// sheet or font, and all text is escaped. Each cell has a tooltip.
func SVG(pictures []Picture) string {
	s := draw(pictures, grid, margin)
	return s.element(fmt.Sprintf("<style>\n%s</style>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", Style(), s.width, s.height))
}

// Inline draws the same for an HTML page, in shorter rows. It has no style of its own, which a
// page's Content-Security-Policy may forbid: the page includes [Style], and may extend it. Cells
// have the class of their state: free, gateway, in-use, unjudged, young, foreign, leaked, conflict.
func Inline(pictures []Picture) string { return draw(pictures, inlineColumns, border).element("") }

// Style returns the style sheet of pictures, whose class is "range".
func Style() string {
	var b strings.Builder
	b.WriteString(`.range text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
.range .h { font-weight: 600; font-size: 15px }
.range .l, .range .g { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 11px; fill: #57606a }
.range .l { text-anchor: end }
.range .g { text-anchor: middle }
.range .g, .range .v { pointer-events: none }
`)
	for state := Free; state < states; state++ {
		if glyphed(state) {
			fmt.Fprintf(&b, ".range .g.%s { fill: %s }\n", styles[state].class, styles[state].ink)
		}
	}
	return b.String()
}

// draw lays out all pictures, with one legend above them.
func draw(pictures []Picture, columns, margin int) *sheet {
	s := &sheet{y: margin, columns: columns, margin: margin}
	for i := range pictures {
		for n := range pictures[i].Panels {
			s.left = max(s.left, margin+glyph*pictures[i].Panels[n].labelWidth()+12)
		}
	}
	s.left = max(s.left, margin)
	s.wide = s.left + columns*side
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
	s.width, s.height = s.wide+margin, s.y+max(border, margin-line/2)
	return s
}

// element wraps the drawing in an svg element, after the text first.
func (s *sheet) element(first string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" class="range" role="img" aria-label="Address ranges">
%[3]s%[4]s</svg>
`, s.width, s.height, first, s.body.String())
}

// A sheet is an SVG that grows downwards.
type sheet struct {
	body    strings.Builder
	columns int // columns of a grid
	margin  int
	left    int // left edge of grids
	wide    int // right edge of grids
	y       int // next free line

	width, height int // final size
}

// text writes text at the next line, and breaks long text.
func (s *sheet) text(x int, class, text string) {
	wide := glyph
	if class == "h" {
		wide = large
	}
	for part := range strings.SplitSeq(term.Screen{Width: (s.wide - x) / wide}.Fold(text), "\n") {
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
	x := s.margin
	advance := func(label string) int {
		w := side + glyph*len(label) + 18
		if x > s.margin && x+w > s.wide {
			x = s.margin
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
	s.text(s.margin, "h", of.Title+": "+p.heading())
	s.y += 4
	for _, row := range p.rows(s.columns) {
		s.put(s.left-8, s.y+13, "l", row.label)
		for i, c := range row.cells {
			if c != nil {
				s.cellOf(s.left+i*side, s.y, c)
			}
		}
		s.y += side
	}
	s.y += 2
	for _, text := range []string{p.hidden(), p.summary(of.Guessed), p.marks()} {
		if text != "" {
			s.text(s.margin, "", text)
		}
	}
}

// edge is the width and height of a cell.
const edge = side - 3

// cellOf draws a cell of the grid. A block is filled from the bottom by the share of each state,
// worst first, and has a badge of the worst.
func (s *sheet) cellOf(x, y int, c *Cell) {
	if !c.isBlock() {
		s.cell(x, y, c.State, c.Marked, c.tooltip())
		return
	}
	s.cell(x, y, Free, c.Marked, c.tooltip())
	room := edge
	if c.share(c.taken()) < 1 {
		room--
	}
	bottom := y + edge
	for state := states - 1; state >= InUse; state-- {
		if n := c.Counts[state]; n > 0 {
			high := min(room, max(2, int(c.share(n)*edge+.5)))
			room, bottom = room-high, bottom-high
			s.part(x, bottom, edge, high, state)
		}
	}
	if glyphed(c.State) {
		const badge = 11
		s.part(x+(edge-badge)/2, y+(edge-badge)/2, badge, badge, c.State)
		s.glyph(x, y, c.State)
	}
}

// cell draws a cell of one state. States that need a person also have their glyph, for people who
// don't see colours.
func (s *sheet) cell(x, y int, state State, marked bool, tooltip string) {
	st := styles[state]
	stroke := ""
	if marked {
		stroke = ` stroke="#0a0c10" stroke-width="2"`
	}
	fmt.Fprintf(&s.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" class=\"%s\" fill=\"%s\"%s><title>%s</title></rect>\n",
		x, y, edge, edge, st.class, st.fill, stroke, escape(tooltip))
	if glyphed(state) {
		s.glyph(x, y, state)
	}
}

// part draws a part of a block. The pointer passes through it to the tooltip.
func (s *sheet) part(x, y, width, height int, state State) {
	fmt.Fprintf(&s.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"2\" class=\"v %s\" fill=\"%s\"/>\n",
		x, y, width, height, styles[state].class, styles[state].fill)
}

func (s *sheet) glyph(x, y int, state State) {
	fmt.Fprintf(&s.body, "<text class=\"g %s\" x=\"%d\" y=\"%d\">%s</text>\n", styles[state].class, x+edge/2, y+12, escape(styles[state].glyph))
}

// glyphed reports whether cells of a state have a glyph.
func glyphed(s State) bool { return s > InUse || s == Gateway }

// tooltip describes the addresses of a cell.
func (c *Cell) tooltip() string {
	text := c.First.String()
	if !c.isBlock() {
		text += ": " + c.State.Label()
	} else {
		var parts []string
		for s := states - 1; s > Free; s-- {
			if n := c.Counts[s]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, s.Label()))
			}
		}
		if free := size(c.First, c.Last).minus(number{lo: uint64(c.taken() + c.Counts[Gateway])}); free != (number{}) {
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
	_ = xml.EscapeText(&b, []byte(text)) // a bytes.Buffer never fails
	return b.String()
}
