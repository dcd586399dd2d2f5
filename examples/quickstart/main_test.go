// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"html"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var update = flag.Bool("update", false, "rewrite quickstart.svg")

// The picture in the README is what the program prints, and what it says is true of the disk.
func TestTour(t *testing.T) {
	dataDir := t.TempDir()
	out, err := tour(t.Context(), dataDir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := hostlocal.New(dataDir).List(t.Context())
	left := ""
	for _, r := range list.Reservations {
		left += r.IP.String() + " "
	}
	if left != "10.244.1.3 10.244.1.5 10.244.1.6 fd00:10:244:1::2 " || err != nil {
		t.Errorf("these reservations are left: %s(%v)", left, err)
	}

	var svg strings.Builder
	lines := strings.Split("$ go run ./examples/quickstart\n\n"+strings.TrimSpace(out), "\n")
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 820 %d" role="img"
  aria-label="What the quickstart prints: each address with a verdict and a reason"><style>
rect { fill: #f6f8fa } text { font: 13px monospace; fill: #1f2328; white-space: pre } .released { fill: #1a7f37 } .conflict { fill: #b3141f }
@media (prefers-color-scheme: dark) { rect { fill: #161b22 } text { fill: #e6edf3 } .released { fill: #3fb950 } .conflict { fill: #ff7b72 } }
</style><rect width="100%%" height="100%%" rx="8"/>
`, len(lines)*19+24)
	for i, line := range lines {
		class := ""
		for _, v := range []gc.Verdict{gc.Released, gc.Conflict} {
			if strings.Contains(line, fmt.Sprint("  ", v, "  ")) {
				class = v.String()
			}
		}
		fmt.Fprintf(&svg, "<text x=\"16\" y=\"%d\" class=%q>%s</text>\n", i*19+28, class, html.EscapeString(line))
	}
	svg.WriteString("</svg>\n")
	if *update {
		if err := os.WriteFile("quickstart.svg", []byte(svg.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile("quickstart.svg")
	if diff := cmp.Diff(string(committed), svg.String()); diff != "" || err != nil {
		t.Errorf("quickstart.svg is not what the program prints, go test -update rewrites it: %v (-committed +printed):\n%s", err, diff)
	}
}
