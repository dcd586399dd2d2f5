// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

var update = flag.Bool("update", false, "rewrite quickstart.svg")

// The picture at the top of the repository's README is the program's output for its pass, without
// the times in its last line.
//
//	go test ./quickstart -run TestPicture -update
func TestPicture(t *testing.T) {
	var out bytes.Buffer
	screen := term.Screen{Colour: true, Width: 96}
	report, left, err := upToResult(t.Context(), &out, screen, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	showAfter(&out, screen, &report, left)
	_, after, _ := strings.Cut(out.String(), "After:")
	_, after, _ = strings.Cut(after, "\n\n")
	after, _, ok := strings.Cut(after, "\nThe plugin's lock")
	if !ok {
		t.Fatalf("no last line in:\n%s", &out)
	}
	got := drawn("$ go run ./examples/quickstart\n" + after)
	const file = "quickstart.svg"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(committed) != got {
		t.Errorf("%s is not what the program prints; -update rewrites it", file)
	}
}

// The width of a character, the height of a line and the margin, in pixels.
const charWidth, lineHeight, margin = 7.8, 19, 16

// drawn makes an SVG of terminal output, with colours for light and dark pages.
func drawn(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	columns := 0
	for _, line := range lines {
		columns = max(columns, utf8.RuneCountInString(escape.ReplaceAllString(line, "")))
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 %.0f %d" role="img" aria-label="What the quickstart prints: each address with a verdict and a reason">
<style>
rect { fill: #f6f8fa; stroke: #d1d9e0 }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; white-space: pre }
.s1 { font-weight: 700 } .s2 { fill: #59636e } .s31 { fill: #b3141f } .s32 { fill: #1a7f37 } .s33 { fill: #7d4e00 } .s34 { fill: #0969da } .s35 { fill: #8250df } .s36 { fill: #0b6b8a }
@media (prefers-color-scheme: dark) {
rect { fill: #161b22; stroke: #30363d }
text { fill: #e6edf3 }
.s2 { fill: #9198a1 } .s31 { fill: #ff7b72 } .s32 { fill: #3fb950 } .s33 { fill: #d29922 } .s34 { fill: #4493f8 } .s35 { fill: #bc8cff } .s36 { fill: #56b6d4 }
}
</style>
<rect x=".5" y=".5" width="%.0f" height="%d" rx="8"/>
`, float64(columns)*charWidth+2*margin, len(lines)*lineHeight+2*margin, float64(columns)*charWidth+2*margin-1, len(lines)*lineHeight+2*margin-1)
	for i, line := range lines {
		// Each run of a style starts at its column, whatever the font's width.
		for at, column, style := 0, 0, ""; at < len(line); {
			next := escape.FindStringSubmatchIndex(line[at:])
			run, rest := line[at:], len(line)
			var then string
			if next != nil {
				run, rest, then = line[at:at+next[0]], at+next[1], line[at+next[2]:at+next[3]]
			}
			if strings.TrimSpace(run) != "" {
				class := ""
				if style != "" && style != "0" {
					class = fmt.Sprintf(` class="s%s"`, style)
				}
				n := utf8.RuneCountInString(run)
				fmt.Fprintf(&out, `<text x="%.1f" y="%d" textLength="%.1f"%s>%s</text>`+"\n",
					margin+float64(column)*charWidth, margin+i*lineHeight+14, float64(n)*charWidth, class, html.EscapeString(run))
			}
			column += utf8.RuneCountInString(run)
			at, style = rest, then
		}
	}
	return out.String() + "</svg>\n"
}

// escape selects a style (ECMA-48, SGR).
var escape = regexp.MustCompile("\x1b\\[([0-9]*)m")
