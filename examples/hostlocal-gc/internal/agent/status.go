// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// A statusStore holds what the passes reported. A stored report is immutable.
type statusStore struct {
	since time.Time

	mu    sync.Mutex // guards the fields below
	ready bool       // the hook at the start has ended, well or not; never reset
	last  status
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
	released      map[string]released
	ranges        iprange.Set     // host-local's ranges; empty if unknown
	sources       []string        // the user's names
	answered      map[string]bool // by name in reports: whether the source ever answered
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

// know sets host-local's ranges.
func (s *statusStore) know(ranges map[string][]iprange.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.ranges = nil
	for _, sets := range ranges {
		s.last.ranges = append(s.last.ranges, slices.Concat(sets...)...)
	}
}

// note stores the result of a pass.
func (s *statusStore) note(report gc.Report, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.report, s.last.err, s.last.ended = report, err, time.Now()
	s.last.passes++
	judged := !errors.Is(err, gc.ErrRefused) && (err == nil || len(report.Reservations) > 0)
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
		s.ready = true
	}
}

// hookEnded records that the hook's time is over.
func (s *statusStore) hookEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
}

// isReady reports whether the hook at the start has ended.
func (s *statusStore) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// get returns what was reported so far.
func (s *statusStore) get() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last
	last.released, last.answered = maps.Clone(last.released), maps.Clone(last.answered)
	return last
}
