// SPDX-License-Identifier: Apache-2.0

package term

import "strings"

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
