// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// Text that Text and SVG share.

// size is the number of addresses from first to last.
func size(first, last netip.Addr) number {
	return numberOf(last).minus(numberOf(first)).plus(number{lo: 1})
}

// heading names the range and the scale.
func (p *Panel) heading() string {
	total := size(p.Range.First, p.Range.Last)
	span := fmt.Sprintf("%s to %s", p.Range.First, p.Range.Last)
	if p.Range.First == p.Range.Last {
		span = p.Range.First.String()
	}
	text := fmt.Sprintf("%s, %s", span, plural(total, "address", "addresses"))
	if p.shift > 0 {
		text += fmt.Sprintf("; a cell is a block of %s, and shows how full it is and the worst in it", number{lo: 1}.times(p.shift))
	}
	return text
}

// hidden describes the part of the range that is not drawn, which is free. It is empty if all is
// drawn.
func (p *Panel) hidden() string {
	drawn := size(p.Cells[0].First, p.Cells[len(p.Cells)-1].Last)
	rest := size(p.Range.First, p.Range.Last).minus(drawn)
	if rest == (number{}) {
		return ""
	}
	return plural(rest, "more address is", "more addresses are") + " free and not drawn"
}

// summary says how much of the range is used, and by what.
func (p *Panel) summary(guessed bool) string {
	usable := size(p.Range.First, p.Range.Last).minus(number{lo: uint64(p.Counts[Gateway])})
	used := 0
	var parts []string
	for s := InUse; s < states; s++ {
		if n := p.Counts[s]; n > 0 {
			used += n
			parts = append(parts, fmt.Sprintf("%s %s", number{lo: uint64(n)}, s.Label()))
		}
	}
	what := ""
	if guessed {
		what = " from the lowest to the highest reservation"
	}
	text := fmt.Sprintf("%s of %s used%s (%s)", number{lo: uint64(used)}, usable, what, percent(used, usable))
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// percent is the share of n in total, never rounded to all or nothing.
func percent(n int, total number) string {
	share := 100 * float64(n) / max(total.float(), 1)
	switch {
	case n == 0:
		return "0 %"
	case share < 0.1:
		return "less than 0.1 %"
	case share > 99.9 && total != number{lo: uint64(n)}:
		return "more than 99.9 %"
	case share >= 100:
		return "100 %"
	}
	return strconv.FormatFloat(share, 'f', 1, 64) + " %"
}

// marks lists the marked addresses. It is empty if there are none.
func (p *Panel) marks() string {
	if len(p.Last) == 0 {
		return ""
	}
	return "last_reserved_ip: " + join(p.Last, len(p.Last))
}

// notes describe the picture as a whole.
func (p *Picture) notes() []string {
	var notes []string
	if len(p.Panels) == 0 {
		notes = append(notes, "Nothing is reserved, and the range is unknown.")
	}
	if n := len(p.Outside); n > 0 {
		notes = append(notes, fmt.Sprintf("%s outside of the range: %s",
			plural(number{lo: uint64(n)}, "reservation lies", "reservations lie"), join(p.Outside, 5)))
	}
	return notes
}

// legend returns the states that pictures need explained: the common ones, and others where they
// occur.
func legend(pictures []Picture) (used []State, marked bool) {
	var seen [states]bool
	for _, s := range []State{Free, InUse, Young, Leaked, Conflict} {
		seen[s] = true
	}
	judged := len(pictures) == 0
	for i := range pictures {
		for _, p := range pictures[i].Panels {
			for s, n := range p.Counts {
				seen[s] = seen[s] || n > 0
				judged = judged || n > 0 && State(s) != Unjudged && State(s) != Gateway
			}
			marked = marked || len(p.Last) > 0
		}
	}
	if !judged && seen[Unjudged] { // the other states can't occur then
		seen[InUse], seen[Young], seen[Leaked], seen[Conflict] = false, false, false, false
	}
	for s := states; s > 0; s-- {
		if seen[s-1] {
			used = append(used, s-1)
		}
	}
	return used, marked
}

func plural(n number, one, many string) string {
	if n == (number{lo: 1}) {
		return "1 " + one
	}
	return n.String() + " " + many
}

// join lists the first few addresses.
func join(ips []netip.Addr, few int) string {
	words := make([]string, len(ips))
	for i, ip := range ips {
		words[i] = ip.String()
	}
	return term.Few(words, few)
}
