// SPDX-License-Identifier: Apache-2.0

// Package term formats the output of the example commands: aligned tables, in colour on a terminal
// and plain in a pipe. It returns strings and writes nothing.
package term

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/term"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A Screen is the output that a command formats for. The zero Screen is a pipe: plain, with lines
// of any length.
type Screen struct {
	// Colour says whether to use escape sequences.
	Colour bool
	// Width is in columns. Tables wrap their last column to fit. Zero wraps nothing, so that grep
	// finds whole rows.
	Width int
}

// Of returns the screen of f, which is the zero Screen unless f is a terminal. NO_COLOR, if not
// empty, and TERM=dumb turn colours off.
func Of(f *os.File) Screen {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return Screen{}
	}
	var s Screen
	if width, _, err := term.GetSize(fd); err == nil {
		s.Width = width
	}
	s.Colour = wantsColour(os.Getenv) && runtime.GOOS != "windows" // whose console needs a mode for colours
	return s
}

// wantsColour reports whether the environment allows colours.
func wantsColour(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// A Style is the parameters of the escape sequence that selects it (ECMA-48, SGR). Users choose the
// eight basic colours of their terminal, which are readable on light and dark screens.
type Style string

const (
	Plain   Style = ""
	Bold    Style = "1"
	Dim     Style = "2"
	Red     Style = "31"
	Green   Style = "32"
	Yellow  Style = "33"
	Blue    Style = "34"
	Magenta Style = "35"
	Cyan    Style = "36"
)

// Paint returns text in the style, or unchanged if there are no colours.
func (s Screen) Paint(style Style, text string) string {
	if !s.Colour || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// VerdictStyle is green for addresses in use, yellow for those that may be in use, blue for foreign
// ones, cyan for released ones, magenta for leaked ones, red for those that need a person, and dim
// for those that others changed meanwhile.
func VerdictStyle(v gc.Verdict) Style {
	switch v {
	case gc.InUse:
		return Green
	case gc.Young, gc.Starting:
		return Yellow
	case gc.Foreign:
		return Blue
	case gc.Released:
		return Cyan
	case gc.Leaked:
		return Magenta
	case gc.Conflict, gc.Malformed, gc.Failed:
		return Red
	case gc.Changed, gc.Gone:
		return Dim
	default:
		return Plain
	}
}

// Fold breaks a line of text between words to fit the screen's width. Words that are wider stay
// whole. Escape sequences don't count.
func (s Screen) Fold(text string) string {
	if s.Width <= 0 {
		return text
	}
	var out strings.Builder
	column := 0
	for i, word := range strings.Split(text, " ") {
		w := columns(visible(word))
		switch {
		case i == 0:
		case column+1+w > s.Width:
			out.WriteByte('\n')
			column = 0
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += w
	}
	return out.String()
}

// visible returns text without the escape sequences of Paint.
func visible(text string) string {
	for {
		before, rest, found := strings.Cut(text, "\x1b[")
		if !found {
			return text
		}
		_, after, _ := strings.Cut(rest, "m")
		text = before + after
	}
}

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
