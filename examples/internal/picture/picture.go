// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

const (
	// maxCells is the default limit of cells for one range. More would not fit on a screen.
	maxCells = 1024
	// maxBlock is the largest block for a whole range. If larger blocks were needed, and smaller
	// ones suffice for the occupied part, only that part is drawn. host-local fills a range from
	// its start, so the rest of a /64 is free.
	maxBlock = 256
	// grid is the largest number of cells in a row. Rows are aligned to it, so that each begins at
	// a round address.
	grid = 32
)

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
	// Last are the addresses that host-local handed out last. They are marked.
	Last []netip.Addr
	// Cells limits the cells for one range; zero means 1024.
	Cells int
}

// A Picture is a network's address space in cells.
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
	// Cells are in the order of their addresses, without gaps.
	Cells []Cell
	// Counts is the number of addresses of the range in each state, except free ones.
	Counts [states]int
	// Last are the marked addresses in the range, sorted.
	Last []netip.Addr

	shift uint // a cell has 2^shift addresses
}

// A Cell is one address, or a block of addresses.
type Cell struct {
	First, Last netip.Addr
	State       State       // the worst state in it
	Counts      [states]int // as in Panel
	Marked      bool        // contains one of the Panel's Last
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

// lay chooses the part of the range to draw and its scale, and makes the cells.
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

// scale returns the smallest shift with which a range needs at most most cells. Cells begin at
// multiples of their size.
func scale(first, last number, most uint64) uint {
	shift := uint(0)
	for !last.over(shift).minus(first.over(shift)).less(number{lo: most}) {
		shift++
	}
	return shift
}

// occupied returns the part of a range with reservations or marks, widened to whole rows.
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
	if to.less(from) { // nothing is occupied
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

// isBlock reports whether the cell has several addresses.
func (c *Cell) isBlock() bool { return c.First != c.Last }

// share returns n as a share of the cell's addresses that can be handed out.
func (c *Cell) share(n int) float64 {
	return float64(n) / max(1, size(c.First, c.Last).float()-float64(c.Counts[Gateway]))
}

// taken returns the number of reserved addresses in the cell.
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
