// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What stands under the tables: what no pass can settle.

// conflicts lists who is in conflict with whom.
func (a *app) conflicts(r *gc.Report) string {
	var rows [][]term.Cell
	for i := range r.Reservations {
		e := &r.Reservations[i]
		if e.Verdict != gc.Conflict && e.Verdict != gc.Malformed {
			continue
		}
		rows = append(rows, []term.Cell{
			{Text: e.IP.String(), Style: term.Red},
			{Text: "held by " + holder(e.Reservation)},
			{Text: claim(e)},
		})
	}
	return a.section(term.Red, "A person has to look at these, which are kept:", rows)
}

// holder is whom the file names.
func holder(r *hostlocal.Reservation) string {
	if r.Owner != hostlocal.Owned {
		return "nobody: " + r.Owner.String()
	}
	return term.ID(r.ContainerID)
}

// claim is what speaks against the holder.
func claim(e *gc.Entry) string {
	switch e.Reason {
	case gc.OtherContainer:
		return "not live, while " + podName(e.Pod) + itsContainer(e.Pod) + " has the address"
	case gc.TwoPods:
		return "and " + podName(e.Pod) + " has the address as well"
	}
	return e.Reason.String()
}

// itsContainer names a pod's container, where it is known.
func itsContainer(p *podsource.Pod) string {
	if p == nil || len(p.ContainerIDs) == 0 {
		return ""
	}
	return " (" + term.ID(p.ContainerIDs[0]) + ")"
}

// duplicates lists the addresses that several pods have, of all networks. Each
// pass sees all pods, so they mostly report the same.
func (a *app) duplicates(reports []gc.Report) string {
	seen := make(map[netip.Addr]bool)
	var rows [][]term.Cell
	for i := range reports {
		for _, d := range reports[i].Duplicates {
			if seen[d.IP] {
				continue
			}
			seen[d.IP] = true
			names := make([]string, len(d.Pods))
			for i, p := range d.Pods {
				names[i] = podName(p)
			}
			rows = append(rows, []term.Cell{{Text: d.IP.String(), Style: term.Red}, {Text: strings.Join(names, " and ")}})
		}
	}
	return a.section(term.Red, "Several live pods have the same address:", rows)
}

// unreserved lists the addresses of live pods that nothing is reserved for, of
// all networks: each pass is told of the others, so they report the same.
func (a *app) unreserved(reports []gc.Report) string {
	seen := make(map[netip.Addr]bool)
	var rows [][]term.Cell
	for i := range reports {
		for _, u := range reports[i].Unreserved {
			if !seen[u.IP] {
				seen[u.IP] = true
				rows = append(rows, []term.Cell{{Text: u.IP.String(), Style: term.Yellow}, {Text: podName(u.Pod)}})
			}
		}
	}
	return a.section(term.Yellow, "Addresses of live pods without a reservation, which host-local may hand out again:", rows)
}

// section is a heading with a small table under it, or nothing.
func (a *app) section(style term.Style, heading string, rows [][]term.Cell) string {
	if len(rows) == 0 {
		return ""
	}
	columns := make([]term.Column, len(rows[0])+1) // the first one indents
	indented := make([][]term.Cell, len(rows))
	for i, row := range rows {
		indented[i] = append([]term.Cell{{}}, row...)
	}
	table := a.screen.Table(columns, indented)
	_, table, _ = strings.Cut(table, "\n") // no column has a title
	return fmt.Sprintf("%s\n%s\n", a.screen.Fold(a.screen.Paint(style, heading)), table)
}
