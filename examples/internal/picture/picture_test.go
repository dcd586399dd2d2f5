// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"encoding/xml"
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
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func held(state State, ips ...string) []Reservation {
	var rs []Reservation
	for _, s := range ips {
		rs = append(rs, Reservation{ip(s), state})
	}
	return rs
}

// sketch writes the glyphs of the addresses of the rows that are drawn, a line for each.
func sketch(p *Panel, n int) string {
	var out strings.Builder
	rows, left := p.rows(n)
	for _, ip := range rows {
		out.WriteString(ip.String() + " ")
		for range n {
			if p.Range.Contains(ip) {
				out.WriteString(styles[p.States[ip]].glyph)
			}
			ip = ip.Next()
		}
		out.WriteByte('\n')
	}
	if left > 0 {
		fmt.Fprintln(&out, left)
	}
	return out.String()
}

// between returns a range. An empty gateway is none.
func between(first, last, gateway string) Range {
	r := Range{First: ip(first), Last: ip(last)}
	if gateway != "" {
		r.Gateway = ip(gateway)
	}
	return r
}

func TestDraw(t *testing.T) {
	c28 := between("10.0.0.1", "10.0.0.14", "10.0.0.1")
	c16 := between("10.0.0.1", "10.0.255.254", "")
	var full []Reservation
	for a := c16.First; c16.Contains(a); a = a.Next() {
		full = append(full, Reservation{a, InUse})
	}
	full[100].State, full[60000].State = Leaked, Conflict
	for _, row := range []struct {
		reason string
		in     Input
		want   string // a sketch of each panel
		out    []netip.Addr
	}{
		{"each address is a cell, and the gateway is none of the free ones",
			Input{Ranges: []Range{c28},
				Reservations: slices.Concat(held(InUse, "10.0.0.2", "10.0.0.5"), held(Leaked, "10.0.0.3"), held(Conflict, "10.0.0.14"))},
			"10.0.0.0 g#x.#..\n10.0.0.8 ......!\n", nil},
		{"a gateway that was handed out all the same is shown as that", Input{Ranges: []Range{c28}, Reservations: held(Leaked, "10.0.0.1")},
			"10.0.0.0 x......\n10.0.0.8 .......\n", nil},
		{"a gateway outside of the range takes no cell", Input{Ranges: []Range{between("10.0.0.8", "10.0.0.11", "10.0.0.1")}},
			"10.0.0.8 ....\n", nil},
		{"without a range, from the lowest to the highest reservation, by family",
			Input{Reservations: slices.Concat(held(InUse, "10.0.0.9", "fd00::4"), held(Young, "10.0.0.5", "fd00::3:fff1"))},
			"10.0.0.0 o..\n10.0.0.8 .#\n" + "fd00:: #...\nfd00::3:fff0 .o\n", nil},
		{"nothing at all", Input{}, "", nil},
		{"of a large range the rows in which something is reserved are drawn",
			Input{Ranges: []Range{c16}, Reservations: slices.Concat(held(InUse, "10.0.0.2", "10.0.255.254"), held(Leaked, "10.0.0.65"))},
			"10.0.0.0 .#.....\n10.0.0.64 .x......\n10.0.255.248 ......#\n", nil},
		{"a subnet of IPv6, and the gateway's row",
			Input{Ranges: []Range{between("fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")}},
			"fd00:: g......\n", nil},
		{"the last addresses there are",
			Input{Ranges: []Range{between("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "")}},
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8 ..\n", nil},
		{"reservations outside of all ranges are listed",
			Input{Ranges: []Range{between("10.0.0.1", "10.0.0.2", ""), between("10.0.0.8", "10.0.0.9", "")},
				Reservations: held(InUse, "fd00::1", "10.0.0.5", "10.0.0.9")},
			"10.0.0.0 ..\n10.0.0.8 .#\n", []netip.Addr{ip("10.0.0.5"), ip("fd00::1")}},
	} {
		p, got := Draw(row.in), ""
		for i := range p.Panels {
			got += sketch(&p.Panels[i], 8)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if diff := cmp.Diff(row.out, p.Outside, sameAddr); diff != "" {
			t.Errorf("%s: outside (-want +got):\n%s", row.reason, diff)
		}
	}
	p := Draw(Input{Ranges: []Range{c16}, Reservations: full})
	rows, left := p.Panels[0].rows(32)
	if len(rows) != 16 || left != 2048-16 || rows[0] != ip("10.0.0.0") || rows[3] != ip("10.0.0.96") || rows[15] != ip("10.0.234.96") {
		t.Errorf("of more rows than fit, the worst are drawn in their order: %v, and %d are not", rows, left)
	}
	if notes := p.Panels[0].notes(false, 32); !slices.Equal(notes[1:], []string{"Not drawn: 2032 more rows, none of them worse."}) {
		t.Errorf("the notes are %q", notes)
	}
}

func example() []Picture {
	return []Picture{
		Draw(Input{
			Title: "podnet", Ranges: []Range{between("10.0.0.1", "10.0.0.46", "10.0.0.1")},
			Reservations: slices.Concat(held(InUse, "10.0.0.2", "10.0.0.34"), held(Leaked, "10.0.0.3", "10.0.7.1"),
				held(Young, "10.0.0.35"), held(Conflict, "10.0.0.46")),
		}),
		Draw(Input{Title: "storage", Reservations: held(InUse, "fd00::2", "fd00::ffff:4")}),
		Draw(Input{Title: "empty"}),
	}
}

func TestText(t *testing.T) {
	for _, row := range []struct {
		reason   string
		width    int
		pictures []Picture
		want     string
	}{
		{"a pipe is laid out for 80 columns, and its lines are not broken", 0, example(), `
! conflict, malformed or failed; x leaked; o young or starting; # in use; g gateway; . free

podnet  10.0.0.1 to 10.0.0.46
          +0              +8              +16             +24
10.0.0.0    g # x . . . . . . . . . . . . . . . . . . . . . . . . . . . .
10.0.0.32 . . # o . . . . . . . . . . !
5 of 45 used: 2 in use, 1 young or starting, 1 leaked, 1 conflict, malformed or failed
1 reservation outside of the range: 10.0.7.1

storage  fd00::2 to fd00::ffff:4
             +0              +8              +10             +18
fd00::           # . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
fd00::ffff:0 . . . . #
2 of about 2^32 used from the lowest to the highest reservation: 2 in use
Rows in which nothing is reserved are not drawn.

empty
Nothing is reserved, and the range is unknown.
`},
		{"a narrow screen has shorter rows", 40, example()[:1], `
! conflict, malformed or failed;
x leaked; o young or starting; # in use;
g gateway; . free

podnet  10.0.0.1 to 10.0.0.46
          +0
10.0.0.0    g # x . . . .
10.0.0.8  . . . . . . . .
10.0.0.16 . . . . . . . .
10.0.0.24 . . . . . . . .
10.0.0.32 . . # o . . . .
10.0.0.40 . . . . . . !
5 of 45 used: 2 in use, 1 young or
starting, 1 leaked, 1 conflict,
malformed or failed
1 reservation outside of the range:
10.0.7.1
`},
	} {
		plain := Text(term.Screen{Width: row.width}, row.pictures)
		if diff := cmp.Diff(strings.TrimPrefix(row.want, "\n"), plain); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		coloured := Text(term.Screen{Width: row.width, Colour: true}, row.pictures)
		if diff := cmp.Diff(plain, regexp.MustCompile("\x1b\\[[0-9;]+m").ReplaceAllString(coloured, "")); diff != "" {
			t.Errorf("%s: coloured, without the colours (-plain +coloured):\n%s", row.reason, diff)
		}
		if want := "\x1b[7;35mx\x1b[0m"; !strings.Contains(coloured, want) {
			t.Errorf("%s: %q is not in the coloured picture", row.reason, want)
		}
	}
}

// All states differ from each other, with colours and without.
func TestStatesDiffer(t *testing.T) {
	seen := make(map[string]State)
	for s := Free; s < states; s++ {
		for _, sign := range []string{"glyph " + styles[s].glyph, "fill " + styles[s].fill, "class " + styles[s].class} {
			if other, ok := seen[sign]; ok {
				t.Errorf("%s and %s have the same %s", other.Label(), s.Label(), sign)
			}
			seen[sign] = s
		}
	}
}

// The page's picture has the cells of the text, with tooltips, and nothing active or foreign.
func TestInline(t *testing.T) {
	html := Inline(example()[0])
	for _, m := range regexp.MustCompile(`<([a-z]+)`).FindAllStringSubmatch(html, -1) {
		if !slices.Contains([]string{"svg", "rect", "text", "title", "p", "b", "span"}, m[1]) {
			t.Errorf("element %s", m[1])
		}
	}
	if err := xml.Unmarshal([]byte("<div>"+strings.ReplaceAll(html, "&ensp;", "")+"</div>"), new(struct{})); err != nil {
		t.Error(err)
	}
	for text, n := range map[string]int{
		"<title>10.0.0.2: in use</title>": 1, "<title>10.0.0.1: gateway</title>": 1, "<title>10.0.0.4: free</title>": 1, "<title>10.0.0.": 46,
		`class="g leaked"`: 2, `class="g conflict"`: 2, ">10.0.0.32</text>": 1, "<p>5 of 45 used: ": 1, "<p>1 reservation outside": 1,
	} {
		if got := strings.Count(html, text); got != n {
			t.Errorf("%q is %d times in it, want %d:\n%s", text, got, n, html)
		}
	}
}

func TestFromReport(t *testing.T) {
	var r gc.Report
	add := func(network, address string, reason gc.Reason) {
		res := &hostlocal.Reservation{Network: network, IP: ip(address)}
		r.Reservations = append(r.Reservations, gc.Entry{Reservation: res, Verdict: reason.Verdict(), Reason: reason})
	}
	add("another", "10.0.0.0", gc.TwoPods) // the same address in another network does not count
	var want []Reservation
	for i, row := range []struct {
		reason string
		why    gc.Reason
		state  State
	}{
		{"held", gc.ContainerLive, InUse},
		{"too young to be judged", gc.TooYoung, Young},
		{"may be a starting pod's", gc.PodStarting, Young},
		{"of a container that no source could know", gc.ForeignOwner, Foreign},
		{"in a network without a source", gc.NoSourceForNetwork, Foreign},
		{"another ADD has reserved it", gc.FileChanged, Young},
		{"leaked", gc.Unowned, Leaked},
		{"leaked, and only read", gc.NetworkNotNamed, Leaked},
		{"given back", gc.ReleasedLeak, Free},
		{"somebody else removed it", gc.FileGone, Free},
		{"in conflict", gc.TwoPods, Conflict},
		{"malformed", gc.OwnerMalformed, Conflict},
		{"could not be removed", gc.ReleaseFailed, Conflict},
		{"no source was asked, or one failed", gc.SourceFailed, Unjudged},
	} {
		address := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		add("podnet", address.String(), row.why)
		if row.state != Free {
			want = append(want, Reservation{address, row.state})
		}
	}
	if diff := cmp.Diff(want, FromReport(&r, "podnet"), sameAddr); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
