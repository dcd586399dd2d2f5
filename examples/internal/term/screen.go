// SPDX-License-Identifier: Apache-2.0

// Package term formats the output of the example commands: aligned tables, in colour on a terminal
// and plain in a pipe. It returns strings and writes nothing.
package term

import (
	"os"
	"runtime"

	"golang.org/x/term"
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
