// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// held returns entries of the network podnet with a reason.
func held(why gc.Reason, ips ...string) (all []gc.Entry) {
	for _, ip := range ips {
		r := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr(ip)}
		all = append(all, gc.Entry{Reservation: r, Verdict: why.Verdict(), Reason: why})
	}
	return all
}

// between returns a range. An empty gateway is none.
func between(first, last, gateway string) []iprange.Range {
	r := iprange.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return []iprange.Range{r}
}

func of(ranges []iprange.Range, entries ...[]gc.Entry) Picture {
	return Of(&gc.Report{Reservations: slices.Concat(entries...)}, "podnet", ranges)
}

// sketch writes the rows that are drawn, a line with the glyphs of 8 addresses for each, and the notes.
func sketch(p Picture) string {
	var lines []string
	for i := range p.panels {
		rows, notes := p.panels[i].rows(8)
		for _, ip := range rows {
			line := ip.String() + " "
			for range 8 {
				if p.panels[i].Contains(ip) {
					line += styles[p.panels[i].states[ip]].glyph
				}
				ip = ip.Next()
			}
			lines = append(lines, line)
		}
		lines = append(lines, notes...)
	}
	return strings.Join(append(lines, p.notes()...), "\n")
}

func TestOf(t *testing.T) {
	another := held(gc.TwoPods, "10.0.0.16")
	another[0].Network = "another"
	var each []gc.Entry
	for i, why := range []gc.Reason{
		gc.ContainerLive, gc.TooYoung, gc.PodStarting, gc.ForeignOwner, gc.NoSourceForNetwork, gc.FileChanged, gc.Unowned, gc.NetworkNotNamed,
		gc.ReleasedLeak, gc.FileGone, gc.TwoPods, gc.OwnerMalformed, gc.ReleaseFailed, gc.SourceFailed,
	} {
		each = append(each, held(why, fmt.Sprintf("10.0.0.%d", i+1))...)
	}
	c16 := between("10.0.0.1", "10.0.255.254", "")
	var full []string
	for ip := c16[0].First; c16[0].Contains(ip); ip = ip.Next() {
		full = append(full, ip.String())
	}
	for _, row := range []struct {
		reason string
		p      Picture
		want   string
	}{
		{"all states; what was released, or is another network's, is free", of(between("10.0.0.0", "10.0.0.20", "10.0.0.0"), another, each),
			"10.0.0.0 g#ooffox\n10.0.0.8 x..!!!?.\n10.0.0.16 .....\n12 of 20 used: 1 in use (#), 1 reserved, not judged (?), " +
				"3 young or starting (o), 2 foreign (f), 2 leaked (x), 3 conflict, malformed or failed (!)"},
		{"a gateway that was handed out all the same", of(between("10.0.0.1", "10.0.0.6", "10.0.0.1"), held(gc.Unowned, "10.0.0.1")),
			"10.0.0.0 x.....\n1 of 5 used: 1 leaked (x)"},
		{"a gateway outside of the range takes no cell", of(between("10.0.0.8", "10.0.0.11", "10.0.0.1")), "10.0.0.8 ....\n0 of 4 used"},
		{"without a range, from the lowest to the highest reservation, by family",
			of(nil, held(gc.ContainerLive, "10.0.0.9", "fd00::4"), held(gc.TooYoung, "10.0.0.5", "fd00::6")),
			"10.0.0.0 o..\n10.0.0.8 .#\n2 of 5 used from the lowest to the highest reservation: 1 in use (#), 1 young or starting (o)\n" +
				"fd00:: #.o\n2 of 3 used from the lowest to the highest reservation: 1 in use (#), 1 young or starting (o)"},
		{"nothing at all", of(nil), "Nothing is reserved, and the range is unknown."},
		{"of a large range the rows in which something is reserved are drawn, and the first one",
			of(between("fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1"), held(gc.ContainerLive, "fd00::ff")),
			"fd00:: g......\nfd00::f8 .......#\n1 of about 2^64 used: 1 in use (#)\nRows in which nothing is reserved are not drawn."},
		{"the last addresses there are", of(between("255.255.255.254", "255.255.255.255", "")), "255.255.255.248 ..\n0 of 2 used"},
		{"reservations outside of all ranges are listed", of(append(between("10.0.0.1", "10.0.0.2", ""), between("10.0.0.8", "10.0.0.9", "")...),
			held(gc.ContainerLive, "fd00::1", "10.0.0.5", "10.0.0.9")),
			"10.0.0.0 ..\n0 of 2 used\n10.0.0.8 .#\n1 of 2 used: 1 in use (#)\n2 reservations outside of the range: 10.0.0.5, fd00::1"},
		{"one address in two files: what is worse",
			of(between("10.0.0.0", "10.0.0.1", ""), held(gc.Unowned, "10.0.0.1"), held(gc.ContainerLive, "10.0.0.1")),
			"10.0.0.0 .x\n1 of 2 used: 1 leaked (x)"},
	} {
		if diff := cmp.Diff(row.want, sketch(row.p)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	entries := held(gc.ContainerLive, full...)
	entries[100], entries[60000] = held(gc.Unowned, full[100])[0], held(gc.TwoPods, full[60000])[0]
	p := of(c16, entries)
	rows, notes := p.panels[0].rows(32)
	text := fmt.Sprintf("%d %v %v %v: %s", len(rows), rows[0], rows[3], rows[15], notes[1])
	if want := "16 10.0.0.0 10.0.0.96 10.0.234.96: Not drawn: 2032 more rows, none of them worse."; text != want {
		t.Errorf("of more rows than fit, the worst are drawn in their order: %s, want %s", text, want)
	}
}

func example() []Picture {
	return []Picture{
		of(between("10.0.0.1", "10.0.0.46", "10.0.0.1"), held(gc.ContainerLive, "10.0.0.2", "10.0.0.34"),
			held(gc.Unowned, "10.0.0.3", "10.0.7.1"), held(gc.TooYoung, "10.0.0.35"), held(gc.TwoPods, "10.0.0.46")),
		of(nil, held(gc.ContainerLive, "fd00::2", "fd00::ffff:4")),
		Of(new(gc.Report), "em\x1bpty", nil),
	}
}

// A pipe is laid out for 80 columns, and its lines are not broken. A narrow screen has shorter rows.
func TestText(t *testing.T) {
	const want = `podnet  10.0.0.1 to 10.0.0.46
          +0              +8              +16             +24
10.0.0.0    g # x . . . . . . . . . . . . . . . . . . . . . . . . . . . .
10.0.0.32 . . # o . . . . . . . . . . !
5 of 45 used: 2 in use (#), 1 young or starting (o), 1 leaked (x), 1 conflict, malformed or failed (!)
1 reservation outside of the range: 10.0.7.1

podnet  fd00::2 to fd00::ffff:4
             +0              +8              +10             +18
fd00::           # . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
fd00::ffff:0 . . . . #
2 of about 2^32 used from the lowest to the highest reservation: 2 in use (#)
Rows in which nothing is reserved are not drawn.

em?pty
Nothing is reserved, and the range is unknown.
`
	coloured := Text(term.Screen{Colour: true}, example())
	for _, got := range []string{Text(term.Screen{}, example()), regexp.MustCompile("\x1b\\[[0-9;]+m").ReplaceAllString(coloured, "")} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if want := "\x1b[7;35mx\x1b[0m"; !strings.Contains(coloured, want) {
		t.Errorf("%q is not in the coloured picture", want)
	}
	narrow := Text(term.Screen{Width: 40}, example()[:1])
	for line := range strings.Lines(narrow) {
		if len(line) > 41 || !strings.Contains(narrow, "\n10.0.0.40 . . . . . . !\n") {
			t.Errorf("a line of %d columns on 40: %s", len(line)-1, narrow)
		}
	}
	if html := Inline(example()[0]); !strings.Contains(html, "\n<i class=\"c2\">10.0.0.32</i> <i class=\"c2\">.</i>") ||
		!strings.Contains(html, " <i class=\"c31\">!</i>\n5 of 45 used: ") {
		t.Errorf("the page's picture is %s", html)
	}
}
