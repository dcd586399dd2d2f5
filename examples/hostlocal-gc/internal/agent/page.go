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

	pageFuncs    = template.FuncMap{"verdict": diagnose.Verdict, "owner": diagnose.Owner}
	pageTemplate = template.Must(template.New("page").Funcs(pageFuncs).Parse(pageText))

	styleSum = sha256.Sum256([]byte(pageStyle))
	// contentPolicy allows the page its style sheet and nothing else, as a second defence against
	// values that were not escaped.
	contentPolicy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(styleSum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// A page is the data of page.html. The JSON has what the page leaves out.
type page struct {
	*Options
	*status
	Style    template.CSS
	Head     []string           // what the last pass was
	Findings []diagnose.Finding // gravest first
	Sections []section
	Foot     string
}

// A section shows one network.
type section struct {
	Name, Counts string
	ReadOnly     bool // nothing is released in it
	Missing      bool // it has no directory
	Picture      template.HTML
	Entries      []*gc.Entry // those that need a person first
}

// Age returns the age of a reservation at the pass that is shown.
func (p page) Age(e *gc.Entry) string { return term.Age(p.shown.Started, e.ReservedAt) }

// Cause returns why an entry leaked, or nothing.
func (p page) Cause(e *gc.Entry) diagnose.Cause { return p.causes.Of(e) }

func (a *Agent) writePage(w io.Writer, s *status, now time.Time) error {
	p := page{
		Options: &a.opts, status: s, Style: template.CSS(pageStyle), // a constant of this program
		Findings: a.all(s, now),
		Foot: fmt.Sprintf("This page is of %s, and the agent has run for %s. There is a pass every %s, or earlier.",
			stamp(now), term.Age(now, a.started), a.opts.Passes.Interval),
	}
	if s.passes > 0 {
		r := &s.report
		p.Head = append(diagnose.Sources(r), fmt.Sprintf("Last pass %s ago, at %s; it took %s. %s since the start.",
			term.Age(now, r.Started), stamp(r.Started), r.Duration.Round(100*time.Microsecond), term.Count(s.passes, "pass")))
		for i, name := range networksOf(&s.shown) {
			p.Sections = append(p.Sections, s.section(name, i >= len(s.shown.Networks)))
		}
	}
	return pageTemplate.Execute(w, p)
}

func (s *status) section(name string, readOnly bool) section {
	out := section{Name: name, ReadOnly: readOnly, Missing: slices.Contains(s.shown.Missing, name)}
	for e := range diagnose.Entries(&s.shown) {
		if e.Network == name {
			out.Entries = append(out.Entries, e)
		}
	}
	out.Counts = diagnose.Counts(term.Screen{}, out.Entries)
	slices.SortStableFunc(out.Entries, func(a, b *gc.Entry) int { return cmp.Compare(urgency(a.Verdict), urgency(b.Verdict)) })
	out.Picture = template.HTML(picture.Inline(picture.Of(&s.shown, name, slices.Concat(s.ranges[name]...)))) // which escapes
	return out
}

// networksOf returns the networks of a report: those to release in, and then those that are only
// read and have reservations.
func networksOf(r *gc.Report) (all []string) {
	all = slices.Clone(r.Networks)
	for e := range diagnose.Entries(r) {
		if !slices.Contains(all, e.Network) {
			all = append(all, e.Network)
		}
	}
	return all
}

// urgency returns the place of a verdict on the page.
func urgency(v gc.Verdict) int {
	return slices.Index([]gc.Verdict{gc.Conflict, gc.Malformed, gc.Failed, gc.Leaked, gc.Starting, gc.Changed, gc.Young, gc.Foreign,
		gc.Released, gc.Gone, gc.InUse}, v)
}
