// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// fleetWidth is the usual width of a screen in columns: a node has one line, also in a pipe.
const fleetWidth = 80

// fleetText returns the screen: a line for each node that needs a person, and a summary.
func (a *app) fleetText(r *fleetReport, now time.Time) string {
	var out strings.Builder
	var rows [][]term.Cell
	domain := commonDomain(r.Nodes)
	for _, n := range r.Nodes {
		if n.Word == diagnose.OK {
			continue
		}
		what, since := n.Error, ""
		if n.State != nil && len(n.State.Findings) > 0 {
			first := n.State.Findings[0]
			what, since = first.Text, term.Age(now, first.Since)
			if first.Network != "" {
				what = first.Network + ": " + what
			}
			if more := len(n.State.Findings) - 1; more > 0 {
				what = fmt.Sprintf("(+%d) %s", more, what)
			}
		}
		rows = append(rows, []term.Cell{{Text: strings.TrimSuffix(n.Node, domain)}, {Text: n.Word}, {Text: since}, {Text: what}})
	}
	width := cmp.Or(a.screen.Width, fleetWidth)
	if len(rows) > 0 {
		table := term.Screen{}.Table([]term.Column{{Title: "NODE"}, {Title: "STATE"}, {Title: "SINCE", Right: true}, {Title: "WHAT (-o json has all)"}}, rows)
		for line := range strings.Lines(table) {
			if text := []rune(line); len(text) > width+1 { // with the line's end
				line = string(text[:width-1]) + "…\n"
			}
			out.WriteString(line)
		}
	}
	fmt.Fprintf(&out, "%d of %d nodes are fine.\n", r.Fine, len(r.Nodes))
	for _, line := range []string{r.drift(domain), r.Note} {
		if line != "" {
			fmt.Fprintln(&out, term.Screen{Width: width}.Fold(term.Clean(line)))
		}
	}
	return out.String()
}

// fleetJSON returns the JSON, without characters that may change what a terminal shows.
func fleetJSON(r *fleetReport) string {
	var out, clean strings.Builder
	_ = writeJSON(&out, r) // of plain values
	for line := range strings.Lines(out.String()) {
		fmt.Fprintln(&clean, term.Clean(strings.TrimSuffix(line, "\n")))
	}
	return clean.String()
}

// commonDomain returns the end of all names from the first dot on, if that is the same.
func commonDomain(nodes []fleetNode) string {
	if len(nodes) < 2 {
		return ""
	}
	_, domain, _ := strings.Cut(nodes[0].Node, ".")
	for _, n := range nodes {
		if _, other, _ := strings.Cut(n.Node, "."); other != domain || domain == "" {
			return ""
		}
	}
	return "." + domain
}

// drift says which agents have other settings than most.
func (r *fleetReport) drift(domain string) string {
	if len(r.Configurations) < 2 {
		return ""
	}
	hashes := slices.SortedFunc(maps.Keys(r.Configurations), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Configurations[b], r.Configurations[a]), cmp.Compare(a, b))
	})
	var others []string
	for _, n := range r.Nodes {
		if n.State != nil && n.State.Configuration != hashes[0] {
			others = append(others, strings.TrimSuffix(n.Node, domain))
		}
	}
	return fmt.Sprintf("Agents with other settings than most: %s.", term.Few(others, 5))
}
