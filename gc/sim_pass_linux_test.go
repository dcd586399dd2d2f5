// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"
)

// A simPass is a pass that is under way. The node goes on meanwhile, wherever
// the pass looks at its context or the clock, and around each source's answer.
type simPass struct {
	inner        []simOp
	noADD        bool // the hook's assertion
	cancel, hang func()
	cancelled    bool // the caller's context has ended
	begun        bool // it does not wait for an earlier one
	asking       bool // a source is being asked, in a goroutine of its own
	faulted      bool // a source failed
	future       bool // an answer was dated in the future
	looks        int
	asked        map[simKind]int      // in which look
	inFlight     map[*simSandbox]bool // when it began
	last         map[*simSandbox]time.Duration
	removed      map[simAddress]bool // by others, meanwhile
}

// turn lets the next operation happen, if a pass is under way.
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

// locked says whether the pass holds host-local's lock of a network.
func (s *simulation) locked() bool {
	return s.pass != nil && s.pass.looks > 0 && !s.pass.asking && slices.ContainsFunc(s.nets[:simNamed], func(n *simNet) bool { return isLocked(filepath.Join(s.dir, n.name, "lock")) })
}

// end ends the caller's context. While a source is asked, the pass would go on
// at once beside it: there it is that source's last deed.
func (p *simPass) end() {
	p.cancelled = true
	if p.asking {
		p.hang = p.cancel
		return
	}
	p.cancel()
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

// Done is asked for before each network is listed, and later so often as the
// machine's speed has it, which must make no difference to a trace.
func (c simContext) Done() <-chan struct{} {
	if p := c.s.pass; p.begun && p.looks == 0 {
		c.s.doNext()
	}
	return c.Context.Done()
}

// doPass does a pass.
func (s *simulation) doPass(o occasion, inner []simOp) (Report, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.passes++
	p := &simPass{inner: inner, noADD: o.noADD, cancel: cancel, asked: make(map[simKind]int), inFlight: make(map[*simSandbox]bool),
		last: make(map[*simSandbox]time.Duration), removed: make(map[simAddress]bool)}
	for _, b := range s.sandboxes {
		p.inFlight[b], p.last[b] = b.inFlight(), b.last
	}
	s.pass = p
	s.trace("pass begins at %v, wall clock %v", s.now, s.wall().Format(time.DateTime))
	report, err := s.agent.reconcile(simContext{ctx, s}, o)
	s.pass, s.fault = nil, simFault{}
	if err != nil {
		s.trace("pass: %v", err)
	}
	s.judgeError(p, o, &report, err)
	s.judgeReport(p, &report)
	s.check()
	return report, err
}

// judgeError holds the error of a pass against what went wrong in it (R2).
func (s *simulation) judgeError(p *simPass, o occasion, report *Report, err error) {
	tooOld := (s.config.asOf || p.future) && o.inLoop && errors.Is(err, ErrRefused)
	switch {
	case err != nil && !p.faulted && !p.cancelled && !tooOld:
		s.violate("pass: %v", err)
	case err == nil && p.faulted:
		s.violate("the error of a source was lost")
	case p.faulted && !errors.Is(err, ErrRefused):
		s.violate("a source failed, and the error does not say so: %v", err)
	}
	if released := report.Counts()[Released]; released > 0 && (p.faulted || p.future) {
		s.violate("%d were released, on an answer that does not count", released)
	}
}

// judgeReport holds the report against the disk (R11): one entry for each
// reservation, and what went away, and not by the simulation's own doing, is in
// it.
func (s *simulation) judgeReport(p *simPass, report *Report) {
	released, seen := make(map[simAddress]bool), make(map[simAddress]bool)
	for _, e := range report.Reservations {
		a := simAddress{slices.IndexFunc(s.nets, func(n *simNet) bool { return n.name == e.Network }), e.IP}
		s.trace("%s is %s: %s", s.name(a), e.Verdict, e.Reason.Text())
		if seen[a] {
			s.violate("%s is twice in the report", s.name(a))
		}
		seen[a] = true
		if e.Verdict != Released {
			continue
		}
		s.releases++
		released[a] = true
		if p.removed[a] {
			s.violate("%s is reported as released, and somebody else removed it", s.name(a))
		}
		if a.net >= simNamed {
			s.violate("%s was released, and its network was not named", s.name(a))
		}
		if f := s.files[a]; f != nil && f.at < s.passes && s.onDisk(a) {
			s.violate("%s is reported as released, and is still there", s.name(a))
		}
	}
	for _, a := range s.known() {
		if s.onDisk(a) {
			continue
		}
		if !released[a] {
			s.violate("%s went away, and no report says so", s.name(a))
		}
		delete(s.files, a)
	}
}

// settle ends all faults, and looks how long leaks outlive them, with passes as
// the loop makes them.
func (s *simulation) endFaults() {
	s.fault = simFault{}
	s.unread = false
	s.agent.clock.observe(s.reading())
	s.trace("from here on nothing is wrong with the sources, at %v", s.now)
	for _, b := range slices.Clone(s.sandboxes) {
		s.finishADD(b)
		if !b.alive || b.pod != nil && b.pod.finished > 0 {
			s.stop(b, delLost) // what is over is forgotten at last
		}
		b.listed = b.alive && !b.lost && !b.foreign()
	}
	s.pending = nil
	s.pods = slices.DeleteFunc(s.pods, func(p *simPod) bool {
		lives := slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool { return b.alive })
		return !lives && !p.hostNetwork && p.finished == 0 && !s.config.stuck
	})
	for _, p := range s.pods {
		if s.report(p, 0); !slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool { return b.alive }) && p.finished == 0 {
			p.statusIPs = nil
		}
	}
	faultsEnd, loop := s.now, simPauses{}
	bound := s.opts.StartingFor + max(s.opts.MinAge, s.opts.lag(), holdFinished) + 2*s.agent.opts.Interval
	if s.config.asOf && s.stepAt > 0 {
		bound += 2*s.agent.opts.Interval + 2*s.opts.Interval // such a list counts as two intervals older than the last pass (R5), and the first may not count
	}
	pause := s.agent.opts.Interval
	for s.broken == nil {
		s.advance(pause)
		s.syncAPI()
		before := s.mustStillGo()
		if s.now-faultsEnd > bound {
			if len(before) > 0 {
				s.violate("%s is leaked, and still there %v after the last fault", s.name(before[0]), s.now-faultsEnd)
			}
			return
		}
		report, err := s.doPass(occasion{inLoop: true}, nil)
		if after := s.mustStillGo(); len(before) > len(after) {
			s.worst = max(s.worst, s.now-faultsEnd)
		} else if len(after) == 0 {
			return
		}
		pause = loop.after(s, &report, err)
	}
}

// mustStillGo returns the leaks that must be released.
func (s *simulation) mustStillGo() (leaks []simAddress) {
	for _, a := range s.known() {
		if s.held[a] == nil && s.mustGo(a) {
			leaks = append(leaks, a)
		}
	}
	return leaks
}

// simPauses is pauses without its jitter, by simulated time.
type simPauses struct{ failures, rechecks int }

func (p *simPauses) after(s *simulation, report *Report, err error) time.Duration {
	interval := s.agent.opts.Interval
	if err != nil {
		p.failures++
		return min(interval, minPause<<min(p.failures-1, 20))
	}
	p.failures = 0
	if report.NextCheck.IsZero() {
		p.rechecks = 0
		return interval
	}
	if report.Counts()[Released] > 0 {
		p.rechecks = 0
	}
	p.rechecks++
	return min(interval, max(minRecheck<<min(p.rechecks-1, 20), report.NextCheck.Sub(s.wall())))
}
