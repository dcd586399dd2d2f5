// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// A status is what the passes have reported so far. It is not changed once it is stored.
type status struct {
	report gc.Report // of the last pass
	err    error     // error of the last pass
	passes int       // since the process started
	ended  time.Time // end of the last pass; before the first one, start of the process
	// shown is the report of the last pass that judged anything, or of the last pass if none did.
	// It is stale if the last pass judged nothing after others had.
	shown         gc.Report
	judged, stale bool
	causes        diagnose.Causes // of the leaks that were found and are still there, or were released last
	confs         []cniconf.Network
	ranges        map[string][]iprange.Set // of confs
	notes         []string                 // why some of --cni-conf could not be read
	found         []diagnose.Finding       // after the last pass
	since         map[[2]string]time.Time  // since when findings exist, by word and network
	// ready is set after a pass in which all sources answered, each answer counted, and no address of a live pod
	// was reserved nowhere while a network had no directory. It is never reset.
	ready bool
}

// note stores the result of a pass, and then what it finds, and sets the metrics. Passes call it one at a time.
func (a *Agent) note(report gc.Report, err error, causes diagnose.Causes) {
	s := *a.last.Load()
	s.readConfs(a.opts.CNIConf)
	a.passes.SetRanges(s.ranges)
	a.passes.OnReport(report, err)
	s.report, s.err, s.ended, s.causes = report, err, time.Now(), causes
	s.passes++
	judged := hasJudged(&report, err)
	s.judged, s.stale = s.judged || judged, s.judged && !judged
	if !s.stale {
		s.shown = report
	}
	refused := errors.Is(err, gc.ErrRefused)
	if !refused { // after a refusal the hook tries again
		a.hookOver.Store(true)
	}
	before := s
	a.last.Store(&before) // for those who ask while the disk is looked at
	s.found, s.since = a.found(&s), make(map[[2]string]time.Time)
	lost := slices.ContainsFunc(s.found, func(f diagnose.Finding) bool { return f.Word == diagnose.Missing && f.Items != nil })
	s.ready = s.ready || report.Looks > 0 && !refused && !lost
	a.findings.Reset()
	now := time.Now()
	for _, f := range a.all(&s, now) {
		key := [2]string{f.Word, f.Network}
		s.since[key] = cmp.Or(before.since[key], now)
		a.findings.WithLabelValues(f.Word, f.Network).Add(float64(max(1, len(f.Items))))
	}
	a.last.Store(&s)
}

// hasJudged reports whether a pass has judged reservations: it was not refused, and could list them.
func hasJudged(report *gc.Report, err error) bool {
	return !errors.Is(err, gc.ErrRefused) && (err == nil || len(report.Reservations) > 0)
}

// readConfs reads the CNI configurations again, since they are often written after the agent started.
func (s *status) readConfs(files []string) {
	s.confs, s.notes, s.ranges = nil, nil, make(map[string][]iprange.Set)
	for _, path := range files {
		found, err := cniconf.ReadFile(path)
		s.confs = append(s.confs, found...)
		if err != nil {
			s.notes = append(s.notes, err.Error())
		}
	}
	for _, n := range s.confs {
		s.ranges[n.Name] = append(s.ranges[n.Name], n.Ranges...)
	}
}

// found returns what no pass settles and needs a person. A refused pass ends no finding: it judged
// nothing.
func (a *Agent) found(s *status) []diagnose.Finding {
	p := &diagnose.Place{Report: s.shown, Confs: s.confs, DirNamed: true, DryRun: a.opts.Passes.DryRun}
	if len(s.report.Networks) > 0 { // also a refused pass has seen the directories
		p.Report.Missing, p.Report.DataDirMissing = s.report.Missing, s.report.DataDirMissing
	}
	if !s.judged {
		p.Refused = []string{"see below"}
	}
	looked := *p
	answers := a.looking.Do(func() { a.look(&looked) })
	if answers { // else it is still written
		p = &looked
	}
	all := slices.DeleteFunc(diagnose.Findings([]*diagnose.Place{p}), func(f diagnose.Finding) bool {
		released := f.Word == diagnose.Leaked && !p.DryRun && slices.Contains(p.Report.Networks, f.Network) // by the next pass
		return f.Word == diagnose.OK || f.Word == diagnose.Unknown || released
	})
	if len(s.notes) > 0 && a.hookOver.Load() {
		all = append(all, diagnose.Finding{Word: diagnose.Config, Text: strings.Join(s.notes, "; "),
			Do: "Is the path of --cni-conf right, and its directory mounted? Ranges are not known, and full ones not noticed."})
	}
	if !answers {
		all = append(all, unknown("the disk of the data directory does not answer", "The node's kernel log says why."))
	}
	return all
}

func unknown(text, do string) diagnose.Finding {
	return diagnose.Finding{Word: diagnose.Unknown, Text: text, Do: do}
}

// all returns all findings, gravest first. Requests share found.
func (a *Agent) all(s *status, now time.Time) []diagnose.Finding {
	all := slices.Concat(s.found, a.ofAgent(s, now))
	diagnose.Sort(all)
	return all
}

// passTime is longer than a pass whose sources all hang.
const passTime = 5 * time.Minute

// ofAgent returns the error of the last pass, and whether no pass has ended for long. A pass that hangs, on its disk
// for example, reports nothing itself.
func (a *Agent) ofAgent(s *status, now time.Time) (all []diagnose.Finding) {
	if s.err != nil {
		f := unknown("the last pass met an error", "")
		if errors.Is(s.err, gc.ErrRefused) {
			f = unknown("the last pass was refused, and released nothing",
				"No pass has judged anything yet. Is each source up, is its socket mounted, and may the agent ask it?")
			var silent []string
			for _, source := range s.report.Sources {
				if source.Error != "" {
					silent = append(silent, source.Name)
				}
			}
			if silent != nil {
				f.Text += ": no answer of " + strings.Join(silent, ", ")
			}
		}
		if s.stale {
			f.Do = fmt.Sprintf("All verdicts here are of the last pass that judged, %s ago, at %s. "+
				"What was reserved or released since is not among them.", term.Age(now, s.shown.Started), stamp(s.shown.Started))
		}
		f.Items = []string{s.err.Error()}
		all = append(all, f)
	}
	wait := a.opts.Passes.Interval + passTime
	if s.passes == 0 {
		wait = a.opts.Passes.StartupTimeout
	}
	switch {
	case now.Sub(s.ended) >= wait:
		all = append(all, unknown("no pass has ended for "+term.Age(now, s.ended),
			"A disk that hangs keeps a pass from ending: the node's kernel log says which."))
	case s.passes == 0:
		all = append(all, unknown("no pass has ended yet", ""))
	}
	return all
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
