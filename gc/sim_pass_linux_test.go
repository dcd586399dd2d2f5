// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A simPass is a pass that is under way. Operations happen during it whenever it checks its context or reads the clock, and before and
// after each answer of a source.
type simPass struct {
	inner []simOp
	occasion
	cancel, hang func()
	cancelled    bool // the caller's context has ended
	begun        bool // it no longer waits for another pass
	asking       bool // a source is being asked, in another goroutine
	faulted      bool // a source failed
	looks        int
	asked        map[simKind]int     // the last look in which it was asked
	removed      map[simAddress]bool // by operations during the pass
}

// doNext runs the next inner operation of a pass.
func (s *simulation) doNext() {
	p := s.pass
	if p == nil || len(p.inner) == 0 || s.broken != nil || p.hang != nil {
		return
	}
	op := p.inner[0]
	p.inner = p.inner[1:]
	s.do(op)
	s.check()
}

// locked reports whether the pass holds host-local's lock of a network.
func (s *simulation) locked() bool {
	return s.pass != nil && s.pass.looks > 0 && !s.pass.asking &&
		slices.ContainsFunc(simNetworks[:simNamed], func(name string) bool { return isLocked(filepath.Join(s.dir, name, "lock")) })
}

// end ends the caller's context. While a source is asked, that is the last thing the source does, because the pass goes on concurrently.
func (p *simPass) end() {
	if p.cancelled = true; p.asking {
		p.hang = p.cancel
	} else {
		p.cancel()
	}
}

// A simContext is the context of a pass.
type simContext struct {
	context.Context
	s *simulation
}

func (c simContext) Err() error {
	c.s.doNext()
	return c.Context.Err()
}

// Done is called before each network is listed. Later the number of calls depends on the machine's speed, on which a trace must not
// depend.
func (c simContext) Done() <-chan struct{} {
	if p := c.s.pass; p.begun && p.looks == 0 {
		c.s.doNext()
	}
	return c.Context.Done()
}

// doPass runs a pass.
func (s *simulation) doPass(o occasion, inner []simOp) (Report, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.passes++
	p := &simPass{inner: inner, occasion: o, cancel: cancel, asked: make(map[simKind]int), removed: make(map[simAddress]bool)}
	for _, b := range s.sandboxes {
		b.wasInFlight, b.lastBefore = b.inFlight(), b.last
	}
	s.pass = p
	report, err := s.agent.reconcile(simContext{ctx, s}, o)
	s.tellPass(o, &report, err)
	s.pass, s.fault = nil, simFault{}
	if _, statErr := os.Stat(s.memoryPath()); statErr == nil && s.memory == 0 {
		s.memory = s.now
	}
	s.judgeError(p, o, &report, err)
	s.judgeReport(p, &report)
	s.check()
	return report, err
}

// judgeError compares the error of a pass with its faults (R2).
func (s *simulation) judgeError(p *simPass, o occasion, report *Report, err error) {
	tooOld := s.config.asOf && o.inLoop && errors.Is(err, ErrRefused)
	switch {
	case err != nil && !p.faulted && !p.cancelled && !tooOld:
		s.violate("pass: %v", err)
	case err == nil && p.faulted:
		s.violate("the error of a source was lost")
	case p.faulted && !errors.Is(err, ErrRefused):
		s.violate("a source failed, and the error does not say so: %v", err)
	}
	if released := report.Counts()[Released]; released > 0 && p.faulted {
		s.violate("%d were released, on an answer that does not count", released)
	}
}

// judgeReport compares the report with the disk (R11): no reservation has two entries, and the report has each release.
func (s *simulation) judgeReport(p *simPass, report *Report) {
	verdicts := make(map[simAddress]Verdict)
	for _, e := range report.Reservations {
		a := simAddress{slices.Index(simNetworks, e.Network), e.IP}
		if verdicts[a] != 0 {
			s.violate("%s is twice in the report", s.name(a))
		}
		if verdicts[a] = e.Verdict; e.Verdict != Released {
			continue
		}
		s.releases++
		delete(s.told.files, a)
		if f := s.files[a]; p.removed[a] {
			s.violate("%s is reported as released, but was removed by an operation", s.name(a))
		} else if a.net >= simNamed {
			s.violate("%s was released, and its network was not named", s.name(a))
		} else if f != nil && f.at < s.passes && s.onDisk(a) {
			s.violate("%s is reported as released, but its file exists", s.name(a))
		}
	}
	for _, a := range s.known() {
		if !s.onDisk(a) {
			if delete(s.files, a); verdicts[a] != Released {
				s.violate("%s was removed, and the report does not say so", s.name(a))
			}
		}
	}
}

// endFaults ends all faults, and then runs passes as the loop does, until no leak is left or the time for that is over.
func (s *simulation) endFaults() {
	s.fault, s.unread = simFault{}, false
	s.lookAtClock()
	for _, b := range slices.Clone(s.sandboxes) {
		s.finishADD(b)
		if !b.alive || b.pod != nil && b.pod.finished > 0 {
			s.stop(b, delLost) // and no longer listed
		}
		b.listed = b.alive && !b.lost && !b.foreign()
	}
	s.pending = nil
	s.pods = slices.DeleteFunc(s.pods, func(p *simPod) bool { return !p.lives() && !p.hostNetwork && p.finished == 0 && !s.config.stuck })
	for _, p := range s.pods {
		if s.report(p, 0); !p.lives() && p.finished == 0 {
			p.statusIPs = nil
		}
	}
	faultsEnd, loop := s.now, simPauses{}
	// A finished pod is seen, holds its address, and then the reservation's age counts from when it was seen unowned, if its timestamp is
	// not trusted. Each ends up to an interval late.
	bound := s.opts.StartingFor + max(s.opts.MinAge, s.opts.lag(), holdFinished) + 3*s.agent.opts.Interval
	if s.config.asOf && s.stepAt > 0 { // a dated list counts as two intervals older than the last pass (R5), and the first list may not count
		bound += 2*s.agent.opts.Interval + 2*s.opts.Interval
	}
	pause := s.agent.opts.Interval
	if s.config.hookOnly { // each start may find that it has to wait for the next one
		pause, bound = time.Hour, bound+4*time.Hour
	}
	for s.broken == nil {
		s.advance(pause)
		s.syncAPI()
		before := s.remainingLeaks()
		if s.now-faultsEnd > bound {
			if len(before) > 0 {
				s.told.line("  frees %s", s.name(before[0]))
				s.violate("%s is leaked and was not released in %v after the last fault", s.name(before[0]), s.now-faultsEnd)
			}
			return
		}
		o := occasion{hook: s.config.hookOnly, inLoop: !s.config.hookOnly}
		if o.hook {
			s.restart()
		}
		report, err := s.doPass(o, nil)
		if after := s.remainingLeaks(); len(before) > len(after) {
			s.worst = max(s.worst, s.now-faultsEnd)
		} else if len(after) == 0 {
			return
		}
		if !o.hook {
			pause = loop.after(s, &report, err)
		}
	}
}

// remainingLeaks returns the leaks that must be released.
func (s *simulation) remainingLeaks() (leaks []simAddress) {
	for _, a := range s.known() {
		if s.holder(a) == nil && s.mustRelease(a) {
			leaks = append(leaks, a)
		}
	}
	return leaks
}

// simPauses is like pauses, without jitter and with simulated time.
type simPauses pauses

func (p *simPauses) after(s *simulation, report *Report, err error) time.Duration {
	pause, rechecks := s.agent.opts.Interval, p.rechecks
	if err != nil {
		p.failures++
		return min(pause, minPause<<min(p.failures-1, 20))
	}
	if *p = (simPauses{}); report.NextCheck.IsZero() {
		return pause
	}
	if report.Counts()[Released] == 0 {
		p.rechecks = rechecks
	}
	p.rechecks++
	return min(pause, max(minRecheck<<min(p.rechecks-1, 20), report.NextCheck.Sub(s.wall())))
}
