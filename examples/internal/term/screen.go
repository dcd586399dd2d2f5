// SPDX-License-Identifier: Apache-2.0

// Package term formats the output of the example commands: aligned tables, in colour on a terminal
// and plain in a pipe. It returns strings and writes nothing.
package term

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A Screen is the output that a command formats for. The zero Screen is a pipe: plain, with lines
// of any length.
type Screen struct {
	// Colour says whether to use escape sequences.
	Colour bool
	// Width is in columns, to which text is folded. Zero folds nothing, so that grep finds whole lines.
	Width int
}

// Of returns the screen of f, which is the zero Screen unless f is a terminal. NO_COLOR, if not
// empty, and TERM=dumb turn colours off.
func Of(f *os.File) Screen {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return Screen{}
	}
	width, _, _ := term.GetSize(fd) // without it nothing is folded
	// The console of Windows needs a mode for colours.
	colour := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && runtime.GOOS != "windows"
	return Screen{colour, max(0, width)}
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
	return map[gc.Verdict]Style{
		gc.InUse: Green, gc.Young: Yellow, gc.Starting: Yellow, gc.Foreign: Blue, gc.Released: Cyan, gc.Leaked: Magenta,
		gc.Conflict: Red, gc.Malformed: Red, gc.Failed: Red, gc.Changed: Dim, gc.Gone: Dim,
	}[v]
}

// Fold breaks a line of text between words to fit the screen's width. Words that are wider stay
// whole. Escape sequences don't count. Wide and combining characters are miscounted, here and in
// tables: addresses, IDs and pods' names are ASCII.
func (s Screen) Fold(text string) string {
	if s.Width <= 0 {
		return text
	}
	var out strings.Builder
	column := 0
	for i, word := range strings.Split(text, " ") {
		w := utf8.RuneCountInString(escapes.ReplaceAllString(word, ""))
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

// escapes are what Paint adds.
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

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

const gap = "  " // between columns

// Table formats rows under their columns. A row may have fewer cells than columns. No line ends in blanks. Text is padded
// before it is coloured, which text/tabwriter does not do.
func (s Screen) Table(head []Column, rows [][]Cell) string {
	lines := [][]Cell{make([]Cell, len(head))}
	for i, c := range head {
		lines[0][i] = Cell{c.Title, Bold}
	}
	lines = append(lines, rows...)
	widths := make([]int, len(head))
	for _, line := range lines {
		for i, c := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	var out strings.Builder
	for _, line := range lines {
		text := ""
		for i, c := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.Text))
			if c.Text = s.Paint(c.Style, Clean(c.Text)); head[i].Right {
				text += pad + c.Text + gap
			} else {
				text += c.Text + pad + gap
			}
		}
		fmt.Fprintln(&out, strings.TrimRight(text, " "))
	}
	return out.String()
}
