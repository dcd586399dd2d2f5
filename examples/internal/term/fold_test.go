// SPDX-License-Identifier: Apache-2.0

package term

import "testing"

func TestFold(t *testing.T) {
	red := Screen{Colour: true}.Paint(Red, "2 leaked")
	for _, row := range []struct {
		reason string
		width  int
		text   string
		want   string
	}{
		{"a pipe has no width", 0, "one two three", "one two three"},
		{"it fits to the last column", 13, "one two three", "one two three"},
		{"one column is missing", 12, "one two three", "one two\nthree"},
		{"a word that is wider stays whole", 3, "a longword b", "a\nlongword\nb"},
		{"colours take no room", 10, "a " + red, "a " + red},
		{"words with a colour are broken as others are", 9, "a " + red, "a \x1b[31m2\nleaked\x1b[0m"},
		{"runs of blanks are kept", 20, "a  b", "a  b"},
		{"nothing", 5, "", ""},
	} {
		if got := (Screen{Width: row.width}).Fold(row.text); got != row.want {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
}
