// SPDX-License-Identifier: Apache-2.0

package term

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

var (
	head = []Column{{Title: "ADDRESS"}, {Title: "AGE", Right: true}, {Title: "VERDICT"}, {Title: "REASON"}}
	rows = [][]Cell{
		{{Text: "10.0.0.2"}, {Text: "3d4h"}, {Text: "in-use", Style: Green}, {Text: "a live pod has its address"}},
		{{Text: "fd00:10:244:1::2"}, {Text: "20s"}, {Text: "young", Style: Yellow}, {Text: "younger than the minimum age", Style: Dim}},
		{{Text: "10.0.0.4"}, {Text: "9h"}},
		{{Text: "10.0.0.5"}, {Text: ""}, {Text: "conflict", Style: Red}, {Text: "two\x1b[2J\nlines"}},
	}
)

func TestTable(t *testing.T) {
	plain := Screen{}.Table(head, rows)
	if diff := cmp.Diff(`ADDRESS            AGE  VERDICT   REASON
10.0.0.2          3d4h  in-use    a live pod has its address
fd00:10:244:1::2   20s  young     younger than the minimum age
10.0.0.4            9h
10.0.0.5                conflict  two?[2J?lines
`, plain); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	coloured := Screen{Colour: true}.Table(head, rows)
	if diff := cmp.Diff(plain, regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(coloured, "")); diff != "" {
		t.Errorf("coloured, without the colours (-plain +coloured):\n%s", diff)
	}
	for _, painted := range []string{"\x1b[1mADDRESS\x1b[0m", "\x1b[32min-use\x1b[0m    ", "\x1b[33myoung\x1b[0m     "} {
		if !strings.Contains(coloured, painted) {
			t.Errorf("%q is not in the coloured table:\n%q", painted, coloured)
		}
	}
}

func TestText(t *testing.T) {
	now := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	few := func(words string) string { return Few(strings.Fields(words), 2) }
	for _, row := range []struct{ reason, got, want string }{
		{"an age in days", Age(now, now.Add(-3*day-4*time.Hour-59*time.Minute)), "3d4h"},
		{"a second unit of zero is left out", Age(now, now.Add(-30*day-59*time.Minute)), "30d"},
		{"hours", Age(now, now.Add(-20*time.Hour-10*time.Minute)), "20h10m"},
		{"whole ones", Age(now, now.Add(-20*time.Hour-59*time.Second)), "20h"},
		{"whole minutes", Age(now, now.Add(-10*time.Minute)), "10m"},
		{"seconds are cut, not rounded", Age(now, now.Add(-1900*time.Millisecond)), "1s"},
		{"so little in the future that the clocks' grain explains it", Age(now, now.Add(time.Millisecond)), "0s"},
		{"in the future", Age(now, now.Add(5*time.Minute)), "-5m"},
		{"a time that was not read", Age(now, time.Time{}), "-"},
		{"no ID", ID(""), "-"},
		{"a PID, as rkt had it", ID("4711"), "4711"},
		{"a sandbox's", ID("162c369c9fc6a1b2c3d4"), "162c369c9fc6"},
		{"nerdctl's, which all have the same prefix", ID("default-162c369c9fc6" + strings.Repeat("0", 52)), "default-162c369c9fc6"},
		{"no networks", Count(0, "network"), "0 networks"},
		{"one", Count(1, "entry"), "1 entry"},
		{"several with a y", Count(2, "entry"), "2 entries"},
		{"several with an s", Count(3, "address"), "3 addresses"},
		{"as many words as may be", few("a b"), "a, b"},
		{"one more is printed, since counting it would be as long", few("a b c"), "a, b, c"},
		{"the rest is counted", few("a b c d"), "a, b, and 2 more"},
	} {
		if row.got != row.want {
			t.Errorf("%s: got %q, want %q", row.reason, row.got, row.want)
		}
	}
}

func TestColours(t *testing.T) {
	if file, err := os.Open(os.DevNull); err != nil || Of(file) != (Screen{}) {
		t.Errorf("what is no terminal has the screen %v, %v", Of(file), err)
	}
	for v := gc.InUse; v <= gc.Failed; v++ {
		if s := VerdictStyle(v); s == Plain || v != gc.Foreign && s == VerdictStyle(gc.Foreign) {
			t.Errorf("verdict %s has no style, or that of foreign, which is neither in use nor a leak", v)
		}
	}
}

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
