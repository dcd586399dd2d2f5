// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// A simOp is one operation. n selects its object among those for which it is possible, so any
// part of a valid script is a valid script, and scripts can be shrunk.
type simOp struct {
	what  simWhat
	n     uint32
	inner []simOp // during a pass: one each time that it checks its context, reads the clock or calls a source
}

type simWhat uint8

const (
	opNothing simWhat = iota
	opPass
	opTime
	opPod
	opADD
	opProceed
	opFailADD
	opList
	opStatus
	opSync
	opNotReady
	opFinish
	opStop
	opDelete
	opForceDelete
	opRecreate
	opLateDEL
	opLoseRecord
	opWipeCache
	opForeign
	opClock
	opRestart
	opReboot
	opRemove
	opGarbage
	opDamage
	opSourceFails
	opCancel
	opTakeOver
	ops
)

// opWeights has the relative frequency of each operation.
var opWeights = [ops]int{
	opNothing: 10, opPass: 16, opTime: 20, opPod: 9, opADD: 13, opProceed: 20, opFailADD: 4, opList: 7, opStatus: 10, opSync: 6,
	opNotReady: 3, opFinish: 5, opStop: 6, opDelete: 3, opForceDelete: 3, opRecreate: 3, opLateDEL: 5, opLoseRecord: 1, opWipeCache: 1,
	opForeign: 3, opClock: 4, opRestart: 2, opReboot: 2, opRemove: 2, opGarbage: 1, opDamage: 3, opSourceFails: 3, opCancel: 1, opTakeOver: 4,
}

func randomOps(rnd *rand.Rand, n int, nested bool) []simOp {
	total := 0
	for _, weight := range opWeights {
		total += weight
	}
	out := make([]simOp, n)
	for i := range out {
		at := rnd.IntN(total)
		for what, weight := range opWeights {
			if at -= weight; at < 0 {
				out[i].what = simWhat(what)
				break
			}
		}
		out[i].n = rnd.Uint32()
		switch out[i].what {
		case opPass, opRestart:
			if nested {
				out[i].what = opProceed
			} else if rnd.IntN(3) > 0 {
				out[i].inner = randomOps(rnd, rnd.IntN(60), true)
			}
		}
	}
	return out
}

func pick[T any](from []T, n uint32, ok func(T) bool) (t T, found bool) {
	var can []T
	for _, x := range from {
		if ok(x) {
			can = append(can, x)
		}
	}
	if len(can) == 0 {
		return t, false
	}
	return can[int(n)%len(can)], true
}

func anyOf[T any](T) bool { return true }

var (
	timeSteps  = []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, 2 * time.Minute, 3 * time.Minute, 6 * time.Minute, 8 * time.Minute, 20 * time.Minute, 3 * time.Hour}
	clockSteps = []time.Duration{-10 * 365 * 24 * time.Hour, -time.Hour, -time.Minute, -time.Second, -150 * time.Millisecond,
		150 * time.Millisecond, time.Second, time.Minute, time.Hour, 10 * 365 * 24 * time.Hour}
)

// opsThatLock take host-local's lock. They are left out while a pass holds it.
var opsThatLock = []simWhat{opADD, opProceed, opFailADD, opStop, opDelete, opRecreate, opLateDEL, opFinish, opForeign, opReboot, opTakeOver}

// opsThatADD begin or continue an ADD. They are left out during a hook whose caller asserts
// that no ADD is in flight.
var opsThatADD = []simWhat{opADD, opProceed, opRecreate, opForeign, opTakeOver}

// do runs one operation if it is possible.
func (s *simulation) do(op simOp) {
	s.steps++
	locked := s.locked()
	if locked && slices.Contains(opsThatLock, op.what) || s.pass != nil && s.pass.noADD && slices.Contains(opsThatADD, op.what) {
		return
	}
	n := op.n
	switch op.what {
	case opPass:
		_, _ = s.doPass(occasion{inLoop: n%4 > 0}, op.inner)
	case opTime:
		d := timeSteps[int(n)%len(timeSteps)]
		if locked {
			d = min(d, 10*time.Second) // no deadline passes while the plugin waits
		}
		s.advance(d)
	case opSync:
		s.syncAPI()
	case opClock:
		s.stepClock(n)
	case opRestart, opReboot:
		if s.pass == nil {
			s.doRestart(op)
		}
	case opWipeCache:
		if s.canWipeCache() {
			clear(s.cache)
			s.trace("libcni's cache is wiped")
		}
	case opSourceFails:
		s.fault = simFault{simFaultKind(1 + n%uint32(simFaults-1)), int(n >> 8 % 16), 1 + int(n>>16%4/3)}
	case opCancel:
		if s.pass != nil {
			s.pass.end()
		}
	case opRemove, opGarbage, opDamage:
		s.doFile(op)
	case opForeign, opLateDEL, opTakeOver:
		s.doOther(op)
	case opPod, opStatus, opFinish, opDelete, opForceDelete, opRecreate:
		s.doPod(op)
	default:
		s.doSandbox(op)
	}
}

// advance adds to the time, in steps small enough for the deadlines.
func (s *simulation) advance(d time.Duration) {
	for d > 0 && s.broken == nil {
		step := min(d, 10*time.Second)
		s.now += step
		d -= step
		if !s.locked() {
			s.deadlines()
		}
	}
}

func (s *simulation) doSandbox(op simOp) {
	n := op.n
	switch op.what {
	case opADD:
		p, ok := pick(s.pods, n, func(p *simPod) bool {
			return !p.hostNetwork && p.finished == 0 && !slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool { return b.alive })
		})
		if ok {
			s.beginADD(p, p.nets, netip.Addr{}, n>>8%8 == 0)
		}
	case opProceed:
		if b, ok := pick(s.sandboxes, n, (*simSandbox).inFlight); ok {
			s.proceed(b)
		}
	case opFailADD: // its DEL may fail too, and then it leaks (hazard 39)
		if b, ok := pick(s.sandboxes, n, (*simSandbox).inFlight); ok {
			s.stop(b, delOutcome(n>>8%uint32(delOutcomes)))
		}
	case opList: // minutes after the ADD, when the pause image is pulled (hazard 71)
		b, ok := pick(s.sandboxes, n, func(b *simSandbox) bool { return b.alive && b.done && !b.listed && !b.lost && !b.foreign() })
		if ok {
			b.listed = true
			s.trace("%s is listed", b.name)
		}
	case opNotReady: // its process ends; namespace and record stay, and its addresses leave the status
		if b, ok := pick(s.sandboxes, n, func(b *simSandbox) bool { return b.alive && b.listed && !s.needsStatus(b.pod) }); ok {
			b.pod.statusIPs = nil
			s.trace("%s is not ready", b.name)
		}
	case opStop:
		if b, ok := pick(s.sandboxes, n, func(b *simSandbox) bool { return !b.inFlight() }); ok {
			s.stop(b, delOutcome(n>>8%uint32(delOutcomes)))
		}
	case opLoseRecord:
		if b, ok := pick(s.sandboxes, n, func(b *simSandbox) bool { return b.alive && b.listed && s.canLoseRecord(b) }); ok {
			b.listed, b.lost = false, true
			s.trace("the runtime loses the record of %s", b.name)
		}
	}
}

func (s *simulation) doPod(op simOp) {
	n := op.n
	if op.what == opPod {
		if len(s.pods) < 10 {
			p := &simPod{hostNetwork: n%16 == 0, static: n%8 == 1, elsewhere: n>>8%8 == 0, second: n>>12%2 == 0 && s.has(fromRuntime2), noEnd: n>>16%2 == 0,
				nets: [][]int{{0}, {0}, {0, 1}, {0, 2}, {0, 1, 2}}[n>>20%5]}
			if p.elsewhere {
				p.nets = []int{1}
			}
			s.startPod(p)
		}
		return
	}
	p, ok := pick(s.pods, n, func(p *simPod) bool {
		switch op.what {
		case opStatus:
			return true
		case opFinish:
			return p.finished == 0 && !p.hostNetwork && !s.needsStatus(p)
		case opForceDelete:
			return s.canForceDelete(p) && !s.needsStatus(p)
		}
		return !p.hostNetwork
	})
	if !ok {
		return
	}
	outcome := delOutcome(n >> 8 % uint32(delOutcomes))
	switch op.what {
	case opStatus:
		s.report(p, n>>8)
	case opFinish: // or it is evicted, if it has no sandbox (hazard 31)
		p.finished, p.finishedAt = s.now, s.wall()
		s.trace("pod %s finished", p.uid)
		for _, b := range slices.Clone(p.sandboxes) {
			if b.inFlight() {
				s.stop(b, outcome)
			}
		}
	case opForceDelete:
		s.trace("pod %s is deleted by force", p.uid)
		s.forget(p)
	case opDelete, opRecreate:
		for _, b := range slices.Clone(p.sandboxes) {
			if b.alive || b.listed {
				s.stop(b, outcome)
			}
		}
		s.trace("pod %s is deleted", p.uid)
		s.forget(p)
		if op.what == opRecreate {
			again := s.startPod(&simPod{name: p.name, static: p.static, nets: p.nets, elsewhere: p.elsewhere, second: p.second, noEnd: p.noEnd})
			s.beginADD(again, again.nets, netip.Addr{}, false)
		}
	}
}

// forget removes a pod from the lists of kubelet and the API server.
func (s *simulation) forget(p *simPod) {
	s.pods = slices.DeleteFunc(s.pods, func(o *simPod) bool { return o == p })
	if !s.statusOnly() && !s.config.asOf {
		s.syncAPI()
	}
}
