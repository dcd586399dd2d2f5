// SPDX-License-Identifier: Apache-2.0

package term

import "github.com/hostlocal-gc/hostlocal-gc/gc"

// A Style is how text looks: the parameters of the escape sequence that selects
// it (ECMA-48, SGR). The eight basic colours are the user's own choice, so they
// can be read on light and dark screens alike.
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

// Paint returns text in the style, and as it is where there are no colours.
func (s Screen) Paint(style Style, text string) string {
	if !s.Colour || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// VerdictStyle is green for what is held, yellow for what may be, blue for what
// no source could know, cyan for what was released, magenta for what would be,
// red for what a person should look at, and dim for what others changed meanwhile.
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
