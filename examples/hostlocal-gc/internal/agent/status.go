// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

// A statusStore holds what the passes reported. A stored report is immutable.
type statusStore struct {
	since time.Time

	mu       sync.Mutex // guards the fields below
	hookOver bool       // the hook at the start has ended, well or not; never reset
	last     status
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
	sources       []string           // the user's names
	answered      map[string]bool    // by name in reports: whether the source ever answered
	ready         bool               // all sources have, in one pass, and each answer counted; never reset
}

// released counts the releases in a network since the process started.
type released struct {
	addresses int
	last      time.Time
}

func newStatusStore(sources []string) *statusStore {
	now := time.Now()
	return &statusStore{since: now, last: status{ended: now, sources: sources, released: make(map[string]released), answered: make(map[string]bool)}}
}

// note stores the result of a pass, and returns its findings.
func (s *statusStore) note(report gc.Report, err error, confs []cniconf.Network, notes []string) []diagnose.Finding {
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
		s.hookOver = true
		s.last.ready = s.last.ready || report.Looks > 0
	}
	s.last.found = s.last.findings()
	return s.last.found
}

// hasJudged reports whether a pass has judged reservations: it was not refused, and could list them.
func hasJudged(report *gc.Report, err error) bool {
	return !errors.Is(err, gc.ErrRefused) && (err == nil || len(report.Reservations) > 0)
}

// hookEnded records that the hook's time is over.
func (s *statusStore) hookEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hookOver = true
}

// hookIsOver reports whether the hook at the start has ended.
func (s *statusStore) hookIsOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hookOver
}

// get returns what was reported so far.
func (s *statusStore) get() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last
	last.released, last.answered = maps.Clone(last.released), maps.Clone(last.answered)
	return last
}
