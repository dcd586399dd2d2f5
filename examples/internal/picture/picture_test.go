// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func held(state State, ips ...string) []Reservation {
	var rs []Reservation
	for _, s := range ips {
		rs = append(rs, Reservation{ip(s), state})
	}
	return rs
}

func all(lists ...[]Reservation) []Reservation {
	var rs []Reservation
	for _, l := range lists {
		rs = append(rs, l...)
	}
	return rs
}

// sketch writes a panel's cells as glyphs, and runs of free cells as their number.
func sketch(p *Panel) string {
	var out strings.Builder
	free := 0
	flush := func() {
		if free > 0 {
			out.WriteString(" " + number{lo: uint64(free)}.String() + " ")
		}
		free = 0
	}
	for _, c := range p.Cells {
		if c.State == Free && !c.Marked {
			free++
			continue
		}
		flush()
		glyph := styles[c.State].glyph
		if c.Marked {
			glyph = "[" + glyph + "]"
		}
		out.WriteString(glyph)
	}
	flush()
	return strings.TrimSpace(out.String())
}

func TestDraw(t *testing.T) {
	c24 := Range{First: ip("10.0.0.1"), Last: ip("10.0.0.254"), Gateway: ip("10.0.0.1")}
	for _, row := range []struct {
		reason string
		in     Input
		cells  []string // a sketch for each panel
		blocks []string // number of addresses in a cell
		out    []netip.Addr
	}{
		{
			"each address is a cell, and the gateway is none of the free ones",
			Input{Ranges: []Range{c24}, Reservations: all(held(InUse, "10.0.0.2", "10.0.0.5"), held(Leaked, "10.0.0.3"), held(Conflict, "10.0.0.254"))},
			[]string{"g#x 1 # 248 !"}, []string{"1"}, nil,
		},
		{
			"a gateway that was handed out all the same is shown as that",
			Input{Ranges: []Range{c24}, Reservations: held(Leaked, "10.0.0.1")},
			[]string{"x 253"}, []string{"1"}, nil,
		},
		{
			"a gateway outside of the range takes no cell",
			Input{Ranges: []Range{{First: ip("10.0.0.8"), Last: ip("10.0.0.11"), Gateway: ip("10.0.0.1")}}},
			[]string{"4"}, []string{"1"}, nil,
		},
		{
			"where host-local goes on is marked, whether reserved or not",
			Input{Ranges: []Range{c24}, Last: []netip.Addr{ip("10.0.0.3"), ip("fd00::3"), ip("10.9.9.9")}, Reservations: held(InUse, "10.0.0.2")},
			[]string{"g#[.] 251"}, []string{"1"}, nil,
		},
		{
			"without a range, from the lowest to the highest reservation, by family",
			Input{Reservations: all(held(InUse, "10.0.0.9", "fd00::4"), held(Young, "10.0.0.5", "fd00::3:fff1"))},
			[]string{"o 3 #", "# 1,022 o"}, []string{"1", "256"}, nil,
		},
		{
			"a single reservation is a range of one",
			Input{Reservations: held(InUse, "10.0.0.9")},
			[]string{"#"}, []string{"1"}, nil,
		},
		{"nothing at all", Input{}, nil, nil, nil},
		{
			"a range too large is scaled, and of a block the worst is seen",
			Input{
				Ranges: []Range{{First: ip("10.0.0.1"), Last: ip("10.0.255.254")}},
				Reservations: all(held(InUse, "10.0.0.2", "10.0.0.63", "10.0.0.64", "10.0.255.254"), held(Leaked, "10.0.0.65"),
					held(Young, "10.0.1.0", "10.0.1.63"), held(InUse, "10.0.1.1"),
					held(Foreign, "10.0.2.0", "10.0.2.64"), held(Young, "10.0.2.1"), held(Leaked, "10.0.2.65")),
			},
			[]string{"#x 2 o 3 fx 1,013 #"}, []string{"64"}, nil,
		},
		{
			"what has less room is drawn with fewer cells",
			Input{Ranges: []Range{{First: ip("10.0.0.0"), Last: ip("10.0.255.255")}}, Reservations: held(InUse, "10.0.0.127", "10.0.0.128"), Cells: 512},
			[]string{"## 510"}, []string{"128"}, nil,
		},
		{
			"of a range that is nearly empty only the occupied part is drawn, in whole rows",
			Input{
				Ranges:       []Range{{First: ip("fd00::1"), Last: ip("fd00::ffff:ffff:ffff:ffff"), Gateway: ip("fd00::1")}},
				Reservations: held(InUse, "fd00::2", "fd00::21"), Last: []netip.Addr{ip("fd00::3")},
			},
			[]string{"g#[.] 29 # 30"}, []string{"1"}, nil,
		},
		{
			"the occupied part of such a range may need a scale, too",
			Input{Ranges: []Range{{First: ip("fd00::"), Last: ip("fd00::ffff:ffff:ffff:ffff")}}, Reservations: held(InUse, "fd00::2", "fd00:0:0:0:1::")},
			[]string{"# 511 #"}, []string{"549,755,813,888"}, nil,
		},
		{
			"such a range without any reservation shows its first row",
			Input{Ranges: []Range{{First: ip("fd00::1"), Last: ip("fd00::ffff:ffff:ffff:ffff")}}},
			[]string{"31"}, []string{"1"}, nil,
		},
		{
			"the last addresses there are",
			Input{Ranges: []Range{{First: ip("ffff:ffff:ffff:ffff::"), Last: ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}}, Reservations: held(InUse, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")},
			[]string{"31 #"}, []string{"1"}, nil,
		},
		{
			"reservations outside of all ranges are listed",
			Input{Ranges: []Range{{First: ip("10.0.0.1"), Last: ip("10.0.0.2")}, {First: ip("10.0.0.8"), Last: ip("10.0.0.9")}}, Reservations: held(InUse, "fd00::1", "10.0.0.5", "10.0.0.9")},
			[]string{"2", "1 #"},
			[]string{"1", "1"},
			[]netip.Addr{ip("10.0.0.5"), ip("fd00::1")},
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			p := Draw(row.in)
			var cells, blocks []string
			for i := range p.Panels {
				panel := &p.Panels[i]
				cells = append(cells, sketch(panel))
				blocks = append(blocks, number{lo: 1}.times(panel.shift).String())
				checkCells(t, panel)
			}
			if diff := cmp.Diff(row.cells, cells); diff != "" {
				t.Errorf("cells (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.blocks, blocks); diff != "" {
				t.Errorf("addresses in a cell (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.out, p.Outside, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("outside (-want +got):\n%s", diff)
			}
		})
	}
}

// checkCells checks every panel: the number of cells fits, and they are inside of the range and
// without gaps.
func checkCells(t *testing.T, p *Panel) {
	t.Helper()
	if len(p.Cells) == 0 || len(p.Cells) > maxCells {
		t.Errorf("%d cells", len(p.Cells))
	}
	for i, c := range p.Cells {
		if !p.Range.Contains(c.First) || !p.Range.Contains(c.Last) || c.Last.Less(c.First) {
			t.Errorf("cell %d, %s to %s, is not within %s to %s", i, c.First, c.Last, p.Range.First, p.Range.Last)
		}
		if i > 0 && c.First != p.Cells[i-1].Last.Next() {
			t.Errorf("cell %d begins at %s, after %s", i, c.First, p.Cells[i-1].Last)
		}
		if at, ok := p.cellOf(c.First); !ok || at != i {
			t.Errorf("%s is said to be in cell %d, and is in %d", c.First, at, i)
		}
		if at, ok := p.cellOf(c.Last); !ok || at != i {
			t.Errorf("%s is said to be in cell %d, and is in %d", c.Last, at, i)
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
	if diff := cmp.Diff(want, FromReport(&r, "podnet"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
