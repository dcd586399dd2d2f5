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
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/picture"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
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
	Notes    []string // errors of the configurations
}

// An alert is a finding, of whose items the page shows some.
type alert struct{ diagnose.Finding }

// Seen returns the items that the page shows, More those that it shows unfolded, and Left the
// number of others.
func (f alert) Seen() []string { return f.Items[:min(few, len(f.Items))] }
func (f alert) More() []string {
	return f.Items[len(f.Seen()):max(len(f.Seen()), min(maxRows, len(f.Items)))]
}
func (f alert) Left() int { return max(0, len(f.Items)-maxRows) }

// writePage writes the page for the current state.
func (a *Agent) writePage(w io.Writer, now time.Time) error {
	o, last := &a.opts, a.statuses.get()
	p := page{
		Style: template.CSS(pageStyle), // a constant of this program
		Node:  o.Node, DataDir: o.DataDir, MinAge: minimumAge(&o.Passes), Interval: cmp.Or(o.Passes.Interval, gc.DefaultInterval), DryRun: o.Passes.DryRun,
		Now: stamp(now), Since: term.Age(now, a.statuses.since), Sentence: sentence(&last, now), Error: last.err != nil, Notes: last.notes,
	}
	for _, f := range a.all(&last, now) {
		p.Alerts = append(p.Alerts, alert{f})
	}
	if last.passes > 0 {
		ranges := make(map[string][]picture.Range)
		for _, n := range last.confs {
			ranges[n.Name] = append(ranges[n.Name], slices.Concat(n.Ranges...)...)
		}
		p.Pass = lastPass(&last, now)
		p.Sources = diagnose.Sources(&last.report)
		p.Networks = sections(&last, now)
		for i := range p.Networks {
			p.Networks[i].draw(&last.shown, ranges[p.Networks[i].Name])
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
