// SPDX-License-Identifier: Apache-2.0

// Package term lays out what the example commands print: aligned tables, in
// colour on a terminal and plain in a pipe. It makes strings and writes nothing.
package term

import (
	"io"
	"os"

	"golang.org/x/term"
)

// A Screen is what a command's output is laid out for. The zero Screen is a
// pipe: plain, and lines of any length.
type Screen struct {
	// Colour says whether escape sequences are understood and wanted.
	Colour bool
	// Width is in columns. Tables wrap their last column to stay in it. Zero
	// wraps nothing, so that a row stays a line and grep finds it whole.
	Width int
}

// Of returns the screen behind f, which is the zero Screen unless f is a
// terminal. NO_COLOR, when set and not empty, and TERM=dumb turn colours off.
func Of(f *os.File) Screen {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return Screen{}
	}
	var s Screen
	if width, _, err := term.GetSize(fd); err == nil {
		s.Width = width
	}
	s.Colour = wantsColour(os.Getenv) && understandsColour(fd)
	return s
}

// Interactive reports whether somebody at a terminal can answer a question.
func Interactive(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// wantsColour reports whether the environment has nothing against colours.
func wantsColour(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
