// SPDX-License-Identifier: Apache-2.0

package term

import "github.com/hostlocal-gc/hostlocal-gc/gc"

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
