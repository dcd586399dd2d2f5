// SPDX-License-Identifier: Apache-2.0

// Package picture draws a network's address ranges as grids with a cell for each address.
//
// [Draw] makes a [Picture], which [Text] shows on a terminal and [Inline] on a page.
package picture

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// maxCells is the largest number of cells of a range. More would not fit on a screen.
const maxCells = 512

// A Range is a range of host-local.
type Range = iprange.Range

// An Input is the input of Draw.
type Input struct {
	// Title names the network.
	Title string
	// Ranges are drawn one by one. By default the range of each family is that from the lowest to
	// the highest reservation.
	Ranges []Range
	// Reservations are the addresses that are not free, in any order.
	Reservations []Reservation
}

// A Picture is a network's address space.
type Picture struct {
	Title  string
	Panels []Panel
	// Guessed says that the ranges are unknown, and follow from the reservations.
	Guessed bool
	// Outside are the reservations outside of all ranges, sorted.
	Outside []netip.Addr
}

// A Panel is one range.
type Panel struct {
	Range Range
	// States are those of the addresses that are not free.
	States map[netip.Addr]State
}

// Draw makes the picture of a network.
func Draw(in Input) Picture {
	p := Picture{Title: in.Title}
	ranges := in.Ranges
	if len(ranges) == 0 {
		ranges = spans(in.Reservations)
		p.Guessed = true
	}
	for _, r := range ranges {
		p.Panels = append(p.Panels, drawRange(r, in))
	}
	for _, r := range in.Reservations {
		if !slices.ContainsFunc(ranges, func(rg Range) bool { return rg.Contains(r.IP) }) {
			p.Outside = append(p.Outside, r.IP)
		}
	}
	slices.SortFunc(p.Outside, netip.Addr.Compare)
	return p
}

// spans returns the range from the lowest to the highest reservation of each family.
func spans(rs []Reservation) []Range {
	var v4, v6 Range
	for _, r := range rs {
		span := &v6
		if r.IP.Is4() {
			span = &v4
		}
		if !span.First.IsValid() || r.IP.Less(span.First) {
			span.First = r.IP
		}
		if !span.Last.IsValid() || span.Last.Less(r.IP) {
			span.Last = r.IP
		}
	}
	return slices.DeleteFunc([]Range{v4, v6}, func(r Range) bool { return !r.First.IsValid() })
}

func drawRange(r Range, in Input) Panel {
	p := Panel{Range: r, States: make(map[netip.Addr]State)}
	if r.Contains(r.Gateway) {
		p.States[r.Gateway] = Gateway // unless it was handed out all the same
	}
	for _, res := range in.Reservations {
		if r.Contains(res.IP) {
			p.States[res.IP] = res.State
		}
	}
	return p
}

// rows returns the first address of each row to draw. A row has n addresses, a power of two, and begins
// at a multiple of n. Of a range that is too large, rows are drawn in which something is reserved, the
// worst ones if these are too many, too. left is the number of those that are left out.
func (p *Panel) rows(n int) (rows []netip.Addr, left int) {
	worst := make(map[netip.Addr]State)
	see := func(ip netip.Addr, s State) {
		row, err := ip.Prefix(ip.BitLen() - bits.TrailingZeros(uint(n)))
		if err == nil { // as for each address that is valid
			worst[row.Addr()] = max(worst[row.Addr()], s)
		}
	}
	see(p.Range.First, Free)
	for ip := p.Range.First; p.Range.Size() < maxCells && p.Range.Contains(ip); ip = ip.Next() {
		see(ip, Free)
	}
	for ip, s := range p.States {
		see(ip, s)
	}
	rows = slices.SortedFunc(maps.Keys(worst), netip.Addr.Compare)
	if left = len(rows) - maxCells/n; left <= 0 {
		return rows, 0
	}
	slices.SortStableFunc(rows, func(a, b netip.Addr) int { return int(worst[b]) - int(worst[a]) })
	rows = rows[:maxCells/n]
	slices.SortFunc(rows, netip.Addr.Compare)
	return rows, left
}

// width is that of the longest label of rows.
func width(rows []netip.Addr) (n int) {
	for _, ip := range rows {
		n = max(n, len(ip.String()))
	}
	return n
}

// summary says how much of the range is used, and by what.
func (p *Panel) summary(guessed bool) string {
	var counts [states]int
	for _, s := range p.States {
		counts[s]++
	}
	used, what := len(p.States)-counts[Gateway], ""
	if guessed {
		what = " from the lowest to the highest reservation"
	}
	size := fmt.Sprintf("%.0f", p.Range.Size())
	if n := p.Range.Size(); n > 1<<24 {
		size = fmt.Sprintf("about 2^%.0f", math.Log2(n))
	}
	text := fmt.Sprintf("%d of %s used%s", used, size, what)
	separator := ": "
	for s := InUse; s < states; s++ {
		if counts[s] > 0 {
			text += fmt.Sprintf("%s%d %s", separator, counts[s], s.Label())
			separator = ", "
		}
	}
	return text
}

// notes are the lines under a panel of which n addresses make a row.
func (p *Panel) notes(guessed bool, n int) []string {
	notes := []string{p.summary(guessed)}
	if _, left := p.rows(n); left > 0 {
		notes = append(notes, fmt.Sprintf("Not drawn: %s, none of them worse.", term.Count(left, "more row")))
	} else if p.Range.Size() >= maxCells {
		notes = append(notes, "Rows in which nothing is reserved are not drawn.")
	}
	return notes
}

// notes describe the picture as a whole.
func (p *Picture) notes() (notes []string) {
	if len(p.Panels) == 0 {
		notes = append(notes, "Nothing is reserved, and the range is unknown.")
	}
	if n := len(p.Outside); n > 0 {
		notes = append(notes, fmt.Sprintf("%s outside of the range: %s", term.Count(n, "reservation"), join(p.Outside)))
	}
	return notes
}

// legend returns the states in pictures, the worst first.
func legend(pictures []Picture) (used []State) {
	seen := [states]bool{Free: true}
	for i := range pictures {
		for _, p := range pictures[i].Panels {
			for _, s := range p.States {
				seen[s] = true
			}
		}
	}
	for s := states; s > 0; s-- {
		if seen[s-1] {
			used = append(used, s-1)
		}
	}
	return used
}

// join lists the first few addresses.
func join(ips []netip.Addr) string {
	words := make([]string, len(ips))
	for i, ip := range ips {
		words[i] = ip.String()
	}
	return term.Few(words, 5)
}
