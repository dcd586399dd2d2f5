// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

const (
	// maxCells is the most that one range is drawn with where Input says nothing.
	// More would fill no screen but several.
	maxCells = 1024
	// maxBlock is the most addresses that a cell stands for as long as less
	// would do if only the occupied part of the range were drawn. host-local
	// fills a range from its start, so the rest of a /64 is free.
	maxBlock = 256
	// grid is the number of cells that a row may have at most, and to which
	// rows are aligned, so that a row begins at a round address.
	grid = 32
)

// A Range is what host-local hands out addresses from.
type Range = iprange.Range

// An Input is what Draw draws.
type Input struct {
	// Title names the network.
	Title string
	// Ranges are drawn one by one. Without any, what lies between the lowest
	// and the highest reservation of each family stands for them.
	Ranges []Range
	// Reservations are what is not free, in any order.
	Reservations []Reservation
	// Last are the addresses that host-local handed out last, to be marked.
	Last []netip.Addr
	// Cells is the most that one range is drawn with; zero is 1024.
	Cells int
}

// A Picture is a network's address space in cells.
type Picture struct {
	Title  string
	Panels []Panel
	// Guessed says that the ranges are not known, but taken from the
	// reservations.
	Guessed bool
	// Outside are the reservations that lie in none of the ranges, sorted.
	Outside []netip.Addr
}

// A Panel is one range.
type Panel struct {
	Range Range
	// Cells are in the order of their addresses, and without a gap.
	Cells []Cell
	// Counts says how many addresses of the range have each state; those that
	// are free are not counted.
	Counts [states]int
	// Last are the marked addresses in the range, sorted.
	Last []netip.Addr

	shift uint // a cell stands for 2^shift addresses
}

// A Cell is one address, or a block of them.
type Cell struct {
	First, Last netip.Addr
	State       State       // the worst in it
	Counts      [states]int // as in Panel
	Marked      bool        // holds one of the Panel's Last
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

// spans returns what lies between the lowest and the highest reservation, for
// each family that has one.
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
	p := Panel{Range: r}
	for _, ip := range in.Last {
		if r.Contains(ip) {
			p.Last = append(p.Last, ip)
		}
	}
	slices.SortFunc(p.Last, netip.Addr.Compare)
	p.Last = slices.Compact(p.Last)
	var inside []Reservation
	for _, res := range in.Reservations {
		if r.Contains(res.IP) {
			inside = append(inside, res)
		}
	}
	p.lay(inside, uint64(cmp.Or(in.Cells, maxCells)))
	for _, res := range inside {
		p.put(res.IP, res.State)
	}
	if g := r.Gateway; r.Contains(g) &&
		!slices.ContainsFunc(inside, func(res Reservation) bool { return res.IP == g }) {
		p.put(g, Gateway)
	}
	for _, ip := range p.Last {
		if i, ok := p.cellOf(ip); ok {
			p.Cells[i].Marked = true
		}
	}
	return p
}

// lay decides which part of the range is drawn and in what scale, and makes the
// cells.
func (p *Panel) lay(inside []Reservation, most uint64) {
	first, last := numberOf(p.Range.First), numberOf(p.Range.Last)
	if scale(first, last, most) > scale(number{}, number{lo: most*maxBlock - 1}, most) {
		first, last = p.occupied(inside, first, last)
	}
	p.shift = scale(first, last, most)
	base := first.over(p.shift)
	n := last.over(p.shift).minus(base).lo + 1
	p.Cells = make([]Cell, n)
	for i := range p.Cells {
		from := base.plus(number{lo: uint64(i)}).times(p.shift)
		to := from.plus(number{lo: 1}.times(p.shift)).minus(number{lo: 1})
		if from.less(first) {
			from = first
		}
		if last.less(to) {
			to = last
		}
		p.Cells[i] = Cell{First: from.addr(p.Range.First), Last: to.addr(p.Range.First)}
	}
}

// scale returns the smallest shift with which a range needs no more than
// most cells. Cells begin at multiples of their size.
func scale(first, last number, most uint64) uint {
	shift := uint(0)
	for !last.over(shift).minus(first.over(shift)).less(number{lo: most}) {
		shift++
	}
	return shift
}

// occupied returns the part of a range in which anything is reserved or marked,
// widened to whole rows.
func (p *Panel) occupied(inside []Reservation, first, last number) (from, to number) {
	from, to = last, first
	see := func(ip netip.Addr) {
		if n := numberOf(ip); n.less(from) {
			from = n
		}
		if n := numberOf(ip); to.less(n) {
			to = n
		}
	}
	for _, r := range inside {
		see(r.IP)
	}
	for _, ip := range p.Last {
		see(ip)
	}
	if to.less(from) { // nothing at all
		from, to = first, first
	}
	const row = 5 // grid is 2^5
	from = from.over(row).times(row)
	to = to.over(row).plus(number{lo: 1}).times(row).minus(number{lo: 1})
	if from.less(first) {
		from = first
	}
	if last.less(to) {
		to = last
	}
	return from, to
}

func (p *Panel) cellOf(ip netip.Addr) (int, bool) {
	if len(p.Cells) == 0 || ip.Less(p.Cells[0].First) || p.Cells[len(p.Cells)-1].Last.Less(ip) {
		return 0, false
	}
	return int(numberOf(ip).over(p.shift).minus(numberOf(p.Cells[0].First).over(p.shift)).lo), true
}

// isBlock reports whether the cell stands for several addresses.
func (c *Cell) isBlock() bool { return c.First != c.Last }

// share is how much of the cell a number of addresses is, of those that can be handed
// out.
func (c *Cell) share(n int) float64 {
	return float64(n) / max(1, size(c.First, c.Last).float()-float64(c.Counts[Gateway]))
}

// taken is how many of the cell's addresses are reserved.
func (c *Cell) taken() (n int) {
	for s := InUse; s < states; s++ {
		n += c.Counts[s]
	}
	return n
}

func (p *Panel) put(ip netip.Addr, s State) {
	p.Counts[s]++
	if i, ok := p.cellOf(ip); ok {
		p.Cells[i].Counts[s]++
		p.Cells[i].State = max(p.Cells[i].State, s)
	}
}
