// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

// A statusStore holds what the passes reported. A stored report is immutable.
type statusStore struct {
	since   time.Time
	look    func(*diagnose.Place) // (*diagnose.Place).Look, which reads the disk
	looking atomic.Bool           // a look has not ended

	mu   sync.Mutex // guards last; nobody reads a disk meanwhile
	last status
}

// A status is what the passes have reported so far.
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
	released      map[string]released
	confs         []cniconf.Network  // of --cni-conf
	notes         []string           // why some could not be read
	found         []diagnose.Finding // after the last pass
	opts          *Options
	answered      map[string]bool         // by name in reports: whether the source ever answered
	hookOver      bool                    // the hook at the start has ended, well or not; never reset
	since         map[[2]string]time.Time // since when findings exist, by word and network; never changed
	// ready is set after a pass in which all sources answered, each answer counted, and no address of a live pod
	// was reserved nowhere while a network had no directory. It is never reset.
	ready bool
}

// released counts the releases in a network since the process started.
type released struct {
	addresses int
	last      time.Time
}

func newStatusStore(opts *Options) *statusStore {
	now := time.Now()
	return &statusStore{since: now, look: (*diagnose.Place).Look, last: status{
		ended: now, opts: opts, released: make(map[string]released), answered: make(map[string]bool),
	}}
}

// note stores the result of a pass, and then what it finds. Passes call it one at a time.
func (s *statusStore) note(report gc.Report, err error, confs []cniconf.Network, notes []string) {
	s.noteReport(report, err, confs, notes)
	last := s.get()
	found := last.findings(s.lookAt)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.found = found
	lost := slices.ContainsFunc(found, func(f diagnose.Finding) bool { return f.Word == diagnose.Missing && f.Items != nil })
	s.last.ready = s.last.ready || report.Looks > 0 && !errors.Is(err, gc.ErrRefused) && !lost
}

func (s *statusStore) noteReport(report gc.Report, err error, confs []cniconf.Network, notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.confs, s.last.notes = confs, notes
	s.last.report, s.last.err, s.last.ended = report, err, time.Now()
	s.last.passes++
	judged := hasJudged(&report, err)
	s.last.judged, s.last.stale = s.last.judged || judged, s.last.judged && !judged
	if !s.last.stale {
		s.last.shown = report
	}
	for _, source := range report.Sources {
		s.last.answered[source.Name] = s.last.answered[source.Name] || source.Error == ""
	}
	for i := range report.Reservations {
		if e := &report.Reservations[i]; e.Verdict == gc.Released {
			s.last.released[e.Network] = released{s.last.released[e.Network].addresses + 1, report.Started}
		}
	}
	if !errors.Is(err, gc.ErrRefused) { // after a refusal the hook tries again
		s.last.hookOver = true
	}
}

// hasJudged reports whether a pass has judged reservations: it was not refused, and could list them.
func hasJudged(report *gc.Report, err error) bool {
	return !errors.Is(err, gc.ErrRefused) && (err == nil || len(report.Reservations) > 0)
}

// hookEnded records that the hook's time is over.
func (s *statusStore) hookEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.hookOver = true
}

// get returns what was reported so far.
func (s *statusStore) get() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last
	last.released, last.answered = maps.Clone(last.released), maps.Clone(last.answered)
	return last
}

// lookTime is the longest time for a look at the data directory.
const lookTime = 5 * time.Second

// lookAt looks at a place, and reports whether the disk answered in time. A look that hangs is left behind, and
// until it ends there is no other.
func (s *statusStore) lookAt(p *diagnose.Place) bool {
	if !s.looking.CompareAndSwap(false, true) {
		return false
	}
	own, done := *p, make(chan struct{})
	go func() {
		defer close(done)
		defer s.looking.Store(false)
		s.look(&own)
	}()
	select {
	case <-done:
		*p = own
		return true
	case <-time.After(lookTime):
		return false
	}
}

// findings returns what no pass settles and needs a person. A refused pass ends no finding: it judged
// nothing.
func (s *status) findings(lookAt func(*diagnose.Place) bool) []diagnose.Finding {
	p := &diagnose.Place{Report: s.shown, Confs: s.confs, DirNamed: true, DryRun: s.opts.Passes.DryRun}
	if len(s.report.Networks) > 0 { // also a refused pass has seen the directories
		p.Report.Missing, p.Report.DataDirMissing = s.report.Missing, s.report.DataDirMissing
	}
	if !s.judged {
		p.Refused = []string{"see below"}
	}
	answers := lookAt(p)
	all := slices.DeleteFunc(diagnose.Findings([]*diagnose.Place{p}), func(f diagnose.Finding) bool {
		released := f.Word == diagnose.Leaked && !p.DryRun && slices.Contains(p.Report.Networks, f.Network) // by the next pass
		return f.Word == diagnose.OK || f.Word == diagnose.Unknown || released
	})
	if len(s.notes) > 0 && s.hookOver {
		all = append(all, diagnose.Finding{Word: diagnose.Config, Text: strings.Join(s.notes, "; "),
			Do: "Is the path of --cni-conf right, and its directory mounted? Ranges are not known, and full ones not noticed."})
	}
	if !answers {
		all = append(all, diagnose.Finding{Word: diagnose.Unknown, Text: "the disk of the data directory does not answer",
			Do: "The node's kernel log says why."})
	}
	if silent := s.neverAnswered(); len(silent) > 0 {
		all = append(all, diagnose.Finding{Word: diagnose.Unknown, Text: "no answer since the start: " + strings.Join(silent, ", "),
			Do: "Is it up, is its socket mounted, and may the agent ask it?"})
	}
	return all
}

// neverAnswered returns the sources that have given no answer since the start. A source that hangs may
// be in no report by name.
func (s *status) neverAnswered() (names []string) {
	for name, answered := range s.answered {
		if !answered {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(s.answered) == 0 && errors.Is(s.err, gc.ErrRefused) {
		names = s.opts.SourceNames
	}
	return names
}

// all returns all findings, gravest first. Requests share found.
func (a *Agent) all(s *status, now time.Time) []diagnose.Finding {
	all := slices.Concat(s.found, a.ofAgent(s, now))
	diagnose.Sort(all)
	return all
}

// ofAgent returns the error of the last pass, and whether no pass has ended for long.
func (a *Agent) ofAgent(s *status, now time.Time) (all []diagnose.Finding) {
	if s.err != nil {
		f := diagnose.Finding{Word: diagnose.Unknown, Text: "the last pass met an error", Items: []string{s.err.Error()}}
		if errors.Is(s.err, gc.ErrRefused) {
			f.Text, f.Do = "the last pass was refused, and released nothing", "No pass has judged anything yet: below is what is reserved."
		}
		if s.stale {
			f.Do = fmt.Sprintf("All verdicts here are of the last pass that judged, %s ago, at %s. "+
				"What was reserved or released since is not among them.",
				term.Age(now, s.shown.Started), stamp(s.shown.Started))
		}
		all = append(all, f)
	}
	late := a.overdue(s, now)
	if late == nil && s.passes == 0 {
		late = []diagnose.Finding{{Word: diagnose.Unknown, Text: "no pass has ended yet"}}
	}
	return append(all, late...)
}

// passTime is longer than a pass whose sources all hang.
const passTime = 5 * time.Minute

// overdue reports that no pass has ended for long. A pass that hangs, on its disk for example,
// reports nothing itself.
func (a *Agent) overdue(s *status, now time.Time) []diagnose.Finding {
	wait := cmp.Or(a.opts.Passes.Interval, gc.DefaultInterval) + passTime
	if s.passes == 0 {
		wait = cmp.Or(a.opts.Passes.StartupTimeout, gc.DefaultStartupTimeout)
	}
	if now.Sub(s.ended) < wait {
		return nil
	}
	return []diagnose.Finding{{Word: diagnose.Unknown, Text: "no pass has ended for " + term.Age(now, s.ended),
		Do: "A disk that hangs keeps a pass from ending: the node's kernel log says which."}}
}

// lines returns the findings in a line each, without pods.
func lines(findings []diagnose.Finding) (all []string) {
	for _, f := range findings {
		all = append(all, f.Line())
	}
	return all
}

// readConfs reads the CNI configurations again, since they are often written after the agent started.
func readConfs(files []string) (confs []cniconf.Network, notes []string) {
	for _, path := range files {
		found, err := cniconf.ReadFile(path)
		confs = append(confs, found...)
		if err != nil {
			notes = append(notes, err.Error())
		}
	}
	return confs, notes
}
