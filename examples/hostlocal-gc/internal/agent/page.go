// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/picture"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	pageStyle string

	pageTemplate = template.Must(template.New("page").Parse(pageText))
)

// contentPolicy allows the page its style sheet and nothing else, as a second defence against
// values that were not escaped.
func contentPolicy() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// A page is the data of page.html.
type page struct {
	Style    template.CSS
	Node     string
	Now      string
	DataDir  string
	MinAge   time.Duration
	Interval time.Duration
	Since    string
	DryRun   bool

	Sentence string  // counts all networks
	Pass     string  // describes the last pass
	Alerts   []alert // findings, and last those of the agent itself
	Error    bool    // the last pass had an error
	Sources  []string
	Networks []section
}

// An alert is a finding, of whose items the page shows some.
type alert struct{ diagnose.Finding }

// Seen returns the items that the page shows, and Left the number of others.
func (f alert) Seen() []string { return f.Items[:min(few, len(f.Items))] }
func (f alert) Left() int      { return len(f.Items) - len(f.Seen()) }

// writePage writes the page for the current state.
func (a *Agent) writePage(w io.Writer, now time.Time) error {
	o, last := &a.opts, a.statuses.get()
	p := page{
		Style: template.CSS(pageStyle), // a constant of this program
		Node:  o.Node, DataDir: o.DataDir, MinAge: minimumAge(&o.Passes), Interval: cmp.Or(o.Passes.Interval, gc.DefaultInterval), DryRun: o.Passes.DryRun,
		Now: stamp(now), Since: term.Age(now, a.statuses.since), Sentence: sentence(&last, now), Error: last.err != nil,
	}
	for _, f := range a.all(&last, now) {
		p.Alerts = append(p.Alerts, alert{f})
	}
	if last.passes > 0 {
		ranges := make(map[string][]iprange.Range)
		for _, n := range last.confs {
			ranges[n.Name] = append(ranges[n.Name], slices.Concat(n.Ranges...)...)
		}
		p.Pass = lastPass(&last, now)
		p.Sources = diagnose.Sources(&last.report)
		p.Networks = sections(&last, now)
		for i := range p.Networks {
			n := &p.Networks[i]
			n.Picture = template.HTML(picture.Inline(picture.Of(&last.shown, n.Name, ranges[n.Name]))) // it names addresses alone
		}
	}
	return pageTemplate.Execute(w, p)
}

// sentence counts the reservations by verdict.
func sentence(s *status, now time.Time) string {
	if s.passes == 0 {
		return "No pass has ended yet."
	}
	var all []*gc.Entry
	for i := range s.shown.Reservations {
		all = append(all, &s.shown.Reservations[i])
	}
	text := term.Count(len(networksOf(&s.shown)), "network") + ", " +
		diagnose.Counts(all, func(_ gc.Verdict, text string) string { return text }) + "."
	if s.stale {
		text = term.Age(now, s.shown.Started) + " ago: " + text
	}
	return text
}

// lastPass says when the last pass was, and when the next one is worthwhile.
func lastPass(s *status, now time.Time) string {
	r := &s.report
	text := fmt.Sprintf("Last pass %s ago, at %s; it took %s", term.Age(now, r.Started), stamp(r.Started), roughly(r.Duration))
	if r.LockHeld > 0 {
		text += fmt.Sprintf(", and held the plugin's lock for %s at most at a time", roughly(r.LongestHold))
	}
	text += "."
	if !r.NextCheck.IsZero() {
		if in := r.NextCheck.Sub(now); in > time.Second {
			text += " A second pass is worthwhile in " + term.Age(r.NextCheck, now) + "."
		} else {
			text += " A second pass is worthwhile now."
		}
	}
	return text + " " + term.Count(s.passes, "pass") + " since the start."
}

func roughly(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

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
