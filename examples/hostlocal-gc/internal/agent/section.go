// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/picture"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// Limits that keep the page small. The JSON has everything.
const (
	maxRows  = 256 // in a list that should be complete
	someRows = 32  // in other lists, where nobody would find an address
	few      = 8   // in a list before it is unfolded
)

// A section shows one network.
type section struct {
	Name     string
	ReadOnly bool   // nothing is released in it
	Missing  bool   // it has no directory
	Total    string // what was released since the start
	Picture  template.HTML
	Groups   []group
}

// A group is the reservations of a network with the same verdict and reason.
type group struct {
	Verdict, Reason, Rule string
	Sample                string // some of its addresses
	Count                 int
	Open, Pods, Causes    bool // whether it is unfolded, and whether some row has a pod, or a cause that is known
	Rows                  []row
}

// Left is the number of rows that are left out.
func (g group) Left() int { return g.Count - len(g.Rows) }

type row struct {
	IP, Container, Full, Age, Pod, From, Error string
	Cause                                      diagnose.Cause
}

// networksOf returns the networks of a report: those to release in, and then those that are only
// read and have reservations.
func networksOf(r *gc.Report) (all []string) {
	all = slices.Clone(r.Networks)
	for i := range r.Reservations {
		name := r.Reservations[i].Network
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// sections returns a section for each network.
func sections(s *status, now time.Time) (all []section) {
	for i, name := range networksOf(&s.shown) {
		n := section{
			Name: name, Missing: slices.Contains(s.shown.Missing, name), ReadOnly: i >= len(s.shown.Networks),
			Groups: groups(&s.shown, s.causes, name),
		}
		if r := s.released[n.Name]; r.addresses > 0 {
			n.Total = fmt.Sprintf("%s released since the start, the last %s ago.", term.Count(r.addresses, "address"), term.Age(now, r.last))
		}
		all = append(all, n)
	}
	return all
}

// groups groups the entries of a network. Those that need a person come first.
func groups(r *gc.Report, causes diagnose.Causes, network string) (all []group) {
	var entries []*gc.Entry
	for i := range r.Reservations {
		if e := &r.Reservations[i]; e.Network == network {
			entries = append(entries, e)
		}
	}
	slices.SortStableFunc(entries, func(a, b *gc.Entry) int {
		return cmp.Or(cmp.Compare(urgency(a.Verdict), urgency(b.Verdict)), cmp.Compare(a.Reason, b.Reason))
	})
	for len(entries) > 0 {
		first := entries[0]
		n := slices.IndexFunc(entries, func(e *gc.Entry) bool { return e.Reason != first.Reason || e.Verdict != first.Verdict })
		if n < 0 {
			n = len(entries)
		}
		all = append(all, newGroup(entries[:n], causes, r.Started))
		entries = entries[n:]
	}
	return all
}

func newGroup(entries []*gc.Entry, causes diagnose.Causes, now time.Time) group {
	first := entries[0]
	g := group{
		Verdict: diagnose.Verdict(first), Reason: first.Reason.Text(), Rule: first.Reason.Rule(), Count: len(entries),
		Open: len(entries) <= few && urgency(first.Verdict) <= urgency(gc.Failed) && first.Reason != gc.SourceFailed,
	}
	if len(entries) > maxRows {
		entries = entries[:someRows]
	}
	for _, e := range entries {
		row := newRow(e, now)
		row.Cause = causes.Of(e)
		g.Rows = append(g.Rows, row)
		g.Pods, g.Causes = g.Pods || e.Pod != nil, g.Causes || row.Cause.Known()
	}
	var sample []string
	for _, r := range g.Rows[:min(len(g.Rows), 3)] {
		sample = append(sample, r.IP)
	}
	if g.Sample = strings.Join(sample, ", "); g.Count > len(sample) {
		g.Sample += ", …"
	}
	return g
}

// urgency returns the place of a verdict on the page.
func urgency(v gc.Verdict) int {
	return slices.Index([]gc.Verdict{gc.Conflict, gc.Malformed, gc.Failed, gc.Leaked, gc.Starting, gc.Changed, gc.Young, gc.Foreign,
		gc.Released, gc.Gone, gc.InUse}, v)
}

func newRow(e *gc.Entry, now time.Time) (out row) {
	if e.Pod != nil {
		out.Pod, out.From = e.Pod.String(), e.Pod.From()
	}
	r := e.Reservation
	if r.Err != nil {
		out.Error = r.Err.Error()
	}
	out.IP, out.Full, out.Age, out.Container = r.IP.String(), r.ContainerID+" "+r.IfName, term.Age(now, r.ReservedAt), term.ID(r.ContainerID)
	if r.Owner != hostlocal.Owned {
		out.Container = r.Owner.String()
	}
	return out
}

// draw adds the picture of the range.
func (n *section) draw(report *gc.Report, ranges []picture.Range) {
	n.Picture = template.HTML(picture.Inline(picture.Draw(picture.Input{ // it names addresses alone
		Ranges: ranges, Reservations: picture.FromReport(report, n.Name),
	})))
}
