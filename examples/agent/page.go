// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"
	"path/filepath"
	"strings"
	"time"

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

// style is the whole style sheet of the page: what the picture needs, and on top
// of it the page's own.
func style() string { return "\n" + picture.Style() + pageStyle }

// contentPolicy allows the page its style sheet and nothing else, so that even a
// value that was not escaped could do no harm.
func contentPolicy() string {
	sum := sha256.Sum256([]byte(style()))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// A page is what page.html shows.
type page struct {
	Style    template.CSS
	Node     string
	Now      string
	DataDir  string
	Sources  []string
	MinAge   time.Duration
	Interval time.Duration
	Since    string
	DryRun   bool
	Sentence string // all networks in one
	Trouble  error
	Networks []section
	Remarks  []string // on addresses, of all networks
	Notes    []string // on this page
}

// writePage writes the page as it is now.
func (a *agent) writePage(w io.Writer, now time.Time) error {
	s := a.settings
	states := a.board.states()
	p := page{
		Style: template.CSS(style()), // of this program, and no one else's
		Node:  s.node, DataDir: s.dataDir, Sources: s.sources, MinAge: s.minAge, Interval: s.interval, DryRun: s.dryRun,
		Now: stamp(now), Since: term.Age(now, a.board.since), Sentence: sentence(states), Trouble: a.board.lookingFailed(),
	}
	ranges, notes := readRanges(s.cniConf)
	for i := range states {
		n := newSection(&states[i], now)
		if err := n.draw(&states[i].report, ranges[n.Name]); err != nil {
			notes = append(notes, "network "+n.Name+": "+err.Error())
		}
		p.Networks = append(p.Networks, n)
	}
	p.Remarks, p.Notes = remarks(states), notes
	return pageTemplate.Execute(w, p)
}

// sentence is the page in one.
func sentence(states []state) string {
	if len(states) == 0 {
		return "No pass has ended yet."
	}
	total := 0
	reports := make([]*gc.Report, len(states))
	for i := range states {
		reports[i] = &states[i].report
		total += len(reports[i].Reservations)
	}
	var parts []string
	for _, c := range tally(reports...) {
		parts = append(parts, c.Text)
	}
	text := plural(total, "reservation", "reservations") + " in " + plural(len(states), "network", "networks")
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text + "."
}

// draw adds the picture of the range.
func (n *section) draw(report *gc.Report, ranges []picture.Range) error {
	last, err := picture.ReadLast(filepath.Join(report.DataDir, report.Network))
	svg := picture.Inline([]picture.Picture{picture.Draw(picture.Input{
		Title: report.Network, Ranges: ranges, Reservations: picture.FromReport(report), Last: last,
	})})
	n.Picture = template.HTML(svg) // every text in it is escaped
	return err
}

// readRanges reads the configurations anew for each page: a network's often
// comes after the agent. What can't be read is told, and the picture guesses.
func readRanges(files []string) (ranges map[string][]picture.Range, notes []string) {
	ranges = make(map[string][]picture.Range)
	for _, path := range files {
		conf, err := picture.ReadConf(path)
		if err != nil {
			notes = append(notes, err.Error())
			continue
		}
		ranges[conf.Network] = append(ranges[conf.Network], conf.Ranges...)
	}
	return ranges, notes
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
