// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What is printed under the tables: what no pass can settle.

// conflicts lists each conflict with its parties.
func (a *app) conflicts(entries []*gc.Entry) string {
	var rows [][]term.Cell
	for _, e := range entries {
		if e.Verdict != gc.Conflict && e.Verdict != gc.Malformed {
			continue
		}
		rows = append(rows, []term.Cell{
			{Text: e.IP.String(), Style: term.Red},
			{Text: "held by " + holder(e.Reservation)},
			{Text: claim(e)},
		})
	}
	return a.section(term.Red, "Kept until a person decides:", rows)
}

// holder returns the container that the file names.
func holder(r *hostlocal.Reservation) string {
	if r.Owner != hostlocal.Owned {
		return "nobody: " + r.Owner.String()
	}
	return term.ID(r.ContainerID)
}

// claim says what contradicts the holder.
func claim(e *gc.Entry) string {
	switch {
	case e.Pod == nil:
	case e.Reason == gc.OtherContainer:
		return "not live, while " + diagnose.PodName(e.Pod) + " has the address"
	case e.Reason == gc.TwoPods:
		return "and " + diagnose.PodName(e.Pod) + " has the address as well"
	case e.Reason == gc.ClaimedInOtherNetwork:
		return "not live, while " + diagnose.PodName(e.Pod) + " has the address in another network"
	}
	if e.Reason == gc.OwnerMalformed {
		return e.Reason.Text() + "; hostlocal-gc remove-malformed removes it, if nobody needs it"
	}
	return e.Reason.Text()
}

// foreign lists the reservations of containers that no source could know: a row for each form of
// ID, with a remedy.
func (a *app) foreign(r *result) string {
	type group struct{ network, form string }
	var order []group
	counts := make(map[group]int)
	for _, e := range r.shown() {
		if e.Verdict != gc.Foreign {
			continue
		}
		g := group{e.Network, form(e)}
		if e.Reason == gc.NotRecorded {
			g.form = cacheIsNewer
		}
		if counts[g]++; counts[g] == 1 {
			order = append(order, g)
		}
	}
	var rows [][]term.Cell
	for _, g := range order {
		remedy := "--source netns would see which of them have an address"
		switch asked := func(s gc.SourceReport) bool { return s.Name == "cnicache" }; {
		case g.form == cacheIsNewer:
			remedy = "kept until the node boots; a list of all containers ends this: --source file:PATH"
		case g.form == anybody && slices.ContainsFunc(r.Sources, asked):
			remedy = "the CNI cache does not count here, see Sources: check the directory of --source cnicache"
		case g.form == otherIDs:
			remedy = "if they have certainly ended: --allow-foreign PREFIX"
		case g.form == anybody:
			remedy = "no --source covers this network; add one that lists pods or containers"
		}
		rows = append(rows, []term.Cell{{Text: g.network, Style: term.Blue}, {Text: term.Count(counts[g], "reservation")}, {Text: g.form}, {Text: remedy}})
	}
	return a.section(term.Blue, "Kept, because no source here can tell whether these containers live:", rows)
}

// The forms of reasons that do not depend on the container's ID.
const (
	anybody      = "of any container"
	otherIDs     = "of owners with other IDs"
	cacheIsNewer = "older than the CNI cache's records"
)

// form returns what the container's ID has in common with other IDs of the same runtime: the text
// before its last 64 hexadecimal digits.
func form(e *gc.Entry) string {
	if e.Reason == gc.NoSourceForNetwork {
		return anybody
	}
	if n := len(e.ContainerID) - 64; n >= 0 && podsource.SandboxContainers.Has(e.ContainerID[n:]) {
		return "of containers " + e.ContainerID[:n] + "<64 hex digits>"
	}
	return otherIDs
}

// duplicates lists the addresses that several pods have.
func (a *app) duplicates(r *result) string {
	var rows [][]term.Cell
	for _, d := range r.Duplicates {
		names := make([]string, len(d.Pods))
		for i, p := range d.Pods {
			names[i] = diagnose.PodName(p)
		}
		slices.Sort(names)
		rows = append(rows, []term.Cell{{Text: d.IP.String(), Style: term.Red}, {Text: strings.Join(names, " and ")}})
	}
	return a.section(term.Red, "Several live pods have the same address:", rows)
}

// unreserved lists the addresses of live pods that no file reserves.
func (a *app) unreserved(r *result) string {
	var rows [][]term.Cell
	for _, u := range r.Unreserved {
		rows = append(rows, []term.Cell{{Text: u.IP.String(), Style: term.Yellow}, {Text: diagnose.PodName(u.Pods[0])}})
	}
	return a.section(term.Yellow, "Addresses of live pods without a reservation, which host-local may hand out again:", rows)
}

// missing lists the directories that do not exist.
func (a *app) missing(r *result) string {
	var rows [][]term.Cell
	for _, name := range r.Missing {
		rows = append(rows, []term.Cell{{Text: filepath.Join(r.DataDir, name), Style: term.Red}})
	}
	return a.section(term.Red, "Directories that do not exist; are --network and --data-dir right?", rows)
}

// section is a heading with a small table under it, or nothing.
func (a *app) section(style term.Style, heading string, rows [][]term.Cell) string {
	if len(rows) == 0 {
		return ""
	}
	if left := len(rows) - fewRows; left > 1 && a.flags.format != formatWide {
		rows = append(rows[:fewRows:fewRows], []term.Cell{{Text: fmt.Sprintf("... %d more (-o wide shows all)", left), Style: style}})
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
