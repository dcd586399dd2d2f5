// SPDX-License-Identifier: Apache-2.0

// Package picture draws a network's address ranges as grids with a cell for each address.
//
// [Of] makes a [Picture], which [Text] shows on a terminal and [Inline] on a page.
package picture

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// maxCells is the largest number of cells of a range. More would not fit on a screen.
const maxCells = 512

// A state is what a cell shows. Of several states in a cell or row the greatest counts, so that what
// needs a person is never hidden.
type state uint8

const (
	free     state = iota
	gateway        // never handed out
	inUse          // held by a live pod
	unjudged       // reserved, and the sources gave no valid answer
	young          // young or starting: may be in use
	foreign        // no source could know its owner
	leaked         // nobody holds it
	conflict       // needs a person: in conflict, malformed, or failed
	states         // number of states
)

// styles are the looks of the states. Glyphs tell them apart without colours.
var styles = [states]struct {
	label, glyph string
	sgr          term.Style
}{
	free:     {"", ".", "2"},
	gateway:  {"", "g", "2"},
	inUse:    {"in use", "#", "7;32"},
	unjudged: {"reserved, not judged", "?", "7;36"},
	young:    {"young or starting", "o", "7;33"},
	foreign:  {"foreign", "f", "7;34"},
	leaked:   {"leaked", "x", "7;35"},
	conflict: {"conflict, malformed or failed", "!", "7;31"},
}

// verdicts have these states. Any other verdict needs a person.
var verdicts = map[gc.Verdict]state{
	gc.InUse: inUse, gc.Foreign: foreign, gc.Leaked: leaked, gc.Released: free, gc.Gone: free,
	gc.Young: young, gc.Starting: young, gc.Changed: young, // a changed file is a new ADD's
}

func stateOf(e *gc.Entry) state {
	s, is := verdicts[e.Verdict]
	switch {
	case e.Reason == gc.SourceFailed:
		return unjudged
	case !is:
		return conflict
	}
	return s
}

// A Picture is a network's address space.
type Picture struct {
	title   string
	panels  []panel
	outside []string // reservations outside of all ranges, sorted
}

// A panel is one range, with the states of the addresses that are not free.
type panel struct {
	iprange.Range
	states  map[netip.Addr]state
	guessed bool // the range follows from the reservations
}

// Of returns the picture of a network after the pass of a report. Without ranges that of each family is
// drawn from the lowest to the highest reservation.
func Of(r *gc.Report, network string, ranges []iprange.Range) Picture {
	held := make(map[netip.Addr]state)
	for i := range r.Reservations {
		if e := &r.Reservations[i]; e.Network == network && stateOf(e) != free {
			held[e.IP] = max(held[e.IP], stateOf(e))
		}
	}
	sorted := slices.SortedFunc(maps.Keys(held), netip.Addr.Compare)
	p, guessed := Picture{title: term.Clean(network)}, len(ranges) == 0
	if v4 := slices.DeleteFunc(slices.Clone(sorted), netip.Addr.Is6); guessed && len(v4) > 0 {
		ranges = append(ranges, iprange.Range{First: v4[0], Last: v4[len(v4)-1]})
	}
	if v6 := slices.DeleteFunc(slices.Clone(sorted), netip.Addr.Is4); guessed && len(v6) > 0 {
		ranges = append(ranges, iprange.Range{First: v6[0], Last: v6[len(v6)-1]})
	}
	for _, rg := range ranges {
		d := panel{rg, make(map[netip.Addr]state), guessed}
		if rg.Contains(rg.Gateway) {
			d.states[rg.Gateway] = gateway // unless it was handed out all the same
		}
		for ip, s := range held {
			if rg.Contains(ip) {
				d.states[ip] = s
			}
		}
		p.panels = append(p.panels, d)
	}
	for _, ip := range sorted {
		if !slices.ContainsFunc(ranges, func(rg iprange.Range) bool { return rg.Contains(ip) }) {
			p.outside = append(p.outside, ip.String())
		}
	}
	return p
}

// rows returns the first address of each row to draw, and what to say under them. A row has n addresses,
// a power of two, and begins at a multiple of n. Of a range that is too large, rows are drawn in which
// something is reserved, the worst ones if these are too many, too.
func (p *panel) rows(n int) (rows []netip.Addr, notes []string) {
	worst := make(map[netip.Addr]state)
	see := func(ip netip.Addr, s state) {
		row, err := ip.Prefix(ip.BitLen() - bits.TrailingZeros(uint(n)))
		if err == nil { // as for each address that is valid
			worst[row.Addr()] = max(worst[row.Addr()], s)
		}
	}
	see(p.First, free)
	for ip := p.First; p.Size() < maxCells && p.Contains(ip); ip = ip.Next() {
		see(ip, free)
	}
	for ip, s := range p.states {
		see(ip, s)
	}
	rows, notes = slices.SortedFunc(maps.Keys(worst), netip.Addr.Compare), []string{p.summary()}
	if left := len(rows) - maxCells/n; left > 0 {
		notes = append(notes, fmt.Sprintf("Not drawn: %s, none of them worse.", term.Count(left, "more row")))
		slices.SortStableFunc(rows, func(a, b netip.Addr) int { return int(worst[b]) - int(worst[a]) })
		rows = rows[:maxCells/n]
		slices.SortFunc(rows, netip.Addr.Compare)
	} else if p.Size() >= maxCells {
		notes = append(notes, "Rows in which nothing is reserved are not drawn.")
	}
	return rows, notes
}

func width(rows []netip.Addr) (n int) {
	for _, ip := range rows {
		n = max(n, len(ip.String()))
	}
	return n
}

// summary says how much of the range is used, and by what, with the glyphs.
func (p *panel) summary() string {
	var counts [states]int
	for _, s := range p.states {
		counts[s]++
	}
	size := fmt.Sprintf("%.0f", p.Size())
	if p.Size() > 1<<24 {
		size = fmt.Sprintf("about 2^%.0f", math.Log2(p.Size()))
	}
	text := fmt.Sprintf("%d of %s used", len(p.states)-counts[gateway], size)
	if p.guessed {
		text += " from the lowest to the highest reservation"
	}
	separator := ": "
	for s := inUse; s < states; s++ {
		if counts[s] > 0 {
			text += fmt.Sprintf("%s%d %s (%s)", separator, counts[s], styles[s].label, styles[s].glyph)
			separator = ", "
		}
	}
	return text
}

// notes describe the picture as a whole.
func (p *Picture) notes() (notes []string) {
	if len(p.panels) == 0 {
		notes = append(notes, "Nothing is reserved, and the range is unknown.")
	}
	if n := len(p.outside); n > 0 {
		notes = append(notes, term.Count(n, "reservation")+" outside of the range: "+term.Few(p.outside, 5))
	}
	return notes
}

// inlineWidth is that of Inline in columns: 16 cells and an address. It fits on a phone.
const inlineWidth = 50

// Inline draws a picture for an HTML page, as on a terminal. Its style sheet has the class "range", and
// for each style that the terminal has by the last number N of its escape sequence the class cN.
func Inline(p Picture) string {
	p.title = ""
	text := template.HTMLEscapeString(Text(term.Screen{Colour: true, Width: inlineWidth}, []Picture{p}))
	return "<pre class=\"range\">" + painted.ReplaceAllString(text, "<i class=\"c$1\">$2</i>") + "</pre>"
}

// painted is a text in a style.
var painted = regexp.MustCompile("\x1b\\[(?:7;)?(\\d+)m(.*?)\x1b\\[0m")

// Text draws pictures for a terminal.
func Text(screen term.Screen, pictures []Picture) string {
	var out strings.Builder
	for _, p := range pictures {
		for i := range p.panels {
			p.panels[i].text(&out, screen, p.title)
		}
		if len(p.panels) == 0 {
			fmt.Fprintf(&out, "\n%s\n", screen.Paint(term.Bold, p.title))
		}
		for _, note := range p.notes() {
			fmt.Fprintln(&out, screen.Fold(note))
		}
	}
	return strings.TrimPrefix(out.String(), "\n")
}

// text draws one range: heading, grid, notes. A pipe has 80 columns.
func (p *panel) text(out *strings.Builder, screen term.Screen, title string) {
	head := strings.TrimSpace(fmt.Sprintf("%s  %s to %s", title, p.First, p.Last))
	fmt.Fprintf(out, "\n%s\n", screen.Paint(term.Bold, head))
	n := 32
	rows, notes := p.rows(n)
	for n > 8 && width(rows)+2*n > cmp.Or(screen.Width, 80) {
		n /= 2
		rows, notes = p.rows(n)
	}
	ruler := strings.Repeat(" ", width(rows)+1)
	for i := 0; i < n; i += 8 {
		ruler += fmt.Sprintf("%-16s", fmt.Sprintf(map[bool]string{true: "+%d", false: "+%x"}[p.First.Is4()], i))
	}
	fmt.Fprintln(out, screen.Paint(term.Dim, strings.TrimRight(ruler, " ")))
	for _, ip := range rows {
		line := screen.Paint(term.Dim, fmt.Sprintf("%-*s", width(rows), ip))
		for range n {
			if s := styles[p.states[ip]]; p.Contains(ip) {
				line += " " + screen.Paint(s.sgr, s.glyph)
			} else {
				line += "  "
			}
			ip = ip.Next()
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	for _, note := range notes {
		fmt.Fprintln(out, screen.Fold(note))
	}
}
