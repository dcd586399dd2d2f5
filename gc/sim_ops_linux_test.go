// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"
)

// A simOp is one operation. n selects its object among those for which it is possible, so any part of a valid script is a valid script,
// and scripts can be shrunk.
type simOp struct {
	what  string // one of simOps
	n     uint32
	inner []simOp // during a pass: one each time that it checks its context, reads the clock or calls a source
}

const (
	opLocks = 1 << iota // it takes host-local's lock, and is left out while a pass holds that
	opADDs              // it begins or continues an ADD, and is left out during a hook whose caller asserts that none is in flight
)

type simOpKind struct {
	name   string
	weight int // how often it happens, relative to the others
	is     int // opLocks, opADDs
	do     func(s *simulation, op simOp)
}

// onPod is an operation on a pod, and onSandbox on a sandbox, for which it is possible.
func onPod(ok func(*simulation, *simPod) bool, do func(*simulation, *simPod, simOp)) func(*simulation, simOp) {
	return func(s *simulation, op simOp) {
		if p := pick(s.pods, op.n, func(p *simPod) bool { return ok(s, p) }); p != nil {
			do(s, p, op)
		}
	}
}

func onSandbox(ok func(*simulation, *simSandbox) bool, do func(*simulation, *simSandbox, simOp)) func(*simulation, simOp) {
	return func(s *simulation, op simOp) {
		if b := pick(s.sandboxes, op.n, func(b *simSandbox) bool { return ok(s, b) }); b != nil {
			do(s, b, op)
		}
	}
}

// simOps returns every operation. do does nothing where it is not possible.
func simOps() []simOpKind {
	inFlight := func(_ *simulation, b *simSandbox) bool { return b.inFlight() }
	stop := func(s *simulation, b *simSandbox, op simOp) { s.stop(b, op.outcome()) }
	own := func(_ *simulation, p *simPod) bool { return !p.hostNetwork }
	return []simOpKind{
		{"nothing", 10, 0, func(*simulation, simOp) {}},
		{"pass", 16, 0, func(s *simulation, op simOp) { _, _ = s.doPass(occasion{inLoop: op.n%4 > 0}, op.inner) }},
		{"time", 20, 0, func(s *simulation, op simOp) {
			d := timeSteps[int(op.n)%len(timeSteps)]
			if s.locked() {
				d = min(d, 10*time.Second) // no deadline passes while the plugin waits
			}
			s.advance(d)
		}},
		{"pod", 9, 0, func(s *simulation, op simOp) {
			if n := op.n; len(s.pods) < 10 {
				p := &simPod{hostNetwork: n%16 == 0, static: n%8 == 1, elsewhere: n>>8%8 == 0, second: n>>12%2 == 0 && s.has(fromRuntime2),
					noEnd: n>>16%2 == 0, nets: [][]int{{0}, {0}, {0, 1}, {0, 2}, {0, 1, 2}}[n>>20%5]}
				if p.elsewhere {
					p.nets = []int{1}
				}
				s.startPod(p)
			}
		}},
		{"ADD", 13, opLocks | opADDs, onPod(func(_ *simulation, p *simPod) bool { return !p.hostNetwork && p.finished == 0 && !p.lives() },
			func(s *simulation, p *simPod, op simOp) { s.beginADD(p, p.nets, netip.Addr{}, op.n>>8%8 == 0) })},
		{"proceed", 20, opLocks | opADDs, onSandbox(inFlight, func(s *simulation, b *simSandbox, _ simOp) { s.proceed(b) })},
		{"fail ADD", 4, opLocks, onSandbox(inFlight, stop)}, // its DEL may fail too, and then it leaks (hazard 39)
		// Minutes after the ADD, when the pause image is pulled (hazard 71).
		{"list", 7, 0, onSandbox(func(_ *simulation, b *simSandbox) bool {
			return b.alive && b.done && !b.listed && !b.lost && !b.foreign()
		},
			func(_ *simulation, b *simSandbox, _ simOp) { b.listed = true })},
		{"status", 10, 0, onPod(func(*simulation, *simPod) bool { return true },
			func(s *simulation, p *simPod, op simOp) { s.report(p, op.n>>8) })},
		{"sync", 6, 0, func(s *simulation, _ simOp) { s.syncAPI() }},
		// Its process ends; namespace and record stay, and its addresses leave the status.
		{"not ready", 3, 0, onSandbox(func(s *simulation, b *simSandbox) bool { return b.alive && b.listed && !s.needsStatus(b.pod) },
			func(_ *simulation, b *simSandbox, _ simOp) { b.pod.statusIPs = nil })},
		// Or it is evicted, if it has no sandbox (hazard 31).
		{"finish", 5, opLocks, onPod(func(s *simulation, p *simPod) bool { return p.finished == 0 && !p.hostNetwork && !s.needsStatus(p) },
			func(s *simulation, p *simPod, op simOp) {
				p.finished, p.finishedAt = s.now, s.wall()
				s.stopAll(p, op.outcome(), (*simSandbox).inFlight)
			})},
		{"stop", 6, opLocks, onSandbox(func(_ *simulation, b *simSandbox) bool { return !b.inFlight() }, stop)},
		{"delete", 3, opLocks, onPod(own, (*simulation).remove)},
		{"force delete", 3, 0, onPod(func(s *simulation, p *simPod) bool { return s.canForceDelete(p) && !s.needsStatus(p) },
			func(s *simulation, p *simPod, _ simOp) { s.forget(p) })},
		{"recreate", 3, opLocks | opADDs, onPod(own, func(s *simulation, p *simPod, op simOp) {
			s.remove(p, op)
			again := s.startPod(&simPod{name: p.name, static: p.static, nets: p.nets, elsewhere: p.elsewhere, second: p.second, noEnd: p.noEnd})
			s.beginADD(again, again.nets, netip.Addr{}, false)
		})},
		{"late DEL", 5, opLocks, func(s *simulation, op simOp) {
			if len(s.pending) > 0 {
				i := int(op.n) % len(s.pending)
				s.del(s.pending[i])
				s.pending = slices.Delete(s.pending, i, i+1)
			}
		}},
		{"lose record", 1, 0, onSandbox((*simulation).canLoseRecord,
			func(_ *simulation, b *simSandbox, _ simOp) { b.listed, b.lost = false, true })},
		{"wipe cache", 1, 0, func(s *simulation, _ simOp) {
			if s.canWipeCache() {
				clear(s.cache)
			}
		}},
		{"foreign", 3, opLocks | opADDs, func(s *simulation, op simOp) { // another tool's container in one of the networks
			if nets := s.foreignNetworks(); nets != nil {
				b := s.beginADD(nil, nets[int(op.n)%len(nets):][:1], netip.Addr{}, false)
				if !s.canRunForeign() && b.alive && !b.freeText {
					s.stop(b, delLost)
				}
			}
		}},
		{"clock", 4, 0, (*simulation).stepClock},
		{"restart", 2, 0, func(s *simulation, op simOp) {
			if s.pass == nil && s.canRestart() {
				s.restartAgent(op)
			}
		}},
		{"reboot", 2, opLocks, func(s *simulation, op simOp) {
			if s.pass == nil && s.canReboot() {
				s.reboot(op.n)
				s.restartAgent(op)
			}
		}},
		{"remove", 2, 0, func(s *simulation, op simOp) { // a person removes a leaked file
			a := pick(s.known(), op.n, func(a simAddress) bool { return s.holder(a) == nil && s.files[a].owner != nil })
			if a.ip.IsValid() && s.onDisk(a) {
				_ = os.Remove(s.path(a))
				s.forgetFile(a)
			}
		}},
		// The files of a live sandbox in its first network, whose addresses a source shows (hazard 84).
		{"damage", 3, 0, onSandbox((*simulation).canDamage, func(s *simulation, b *simSandbox, op simOp) {
			content := []byte("\x00\x00\x00")[:op.n>>8%2*3]
			for _, a := range b.addrs {
				if a.net == b.addrs[0].net && s.onDisk(a) && os.WriteFile(s.path(a), content, 0o600) == nil {
					s.stamp(a, b)
					s.files[a].damaged, s.files[a].empty = true, len(content) == 0
				}
			}
		})},
		{"source fails", 3, 0, func(s *simulation, op simOp) {
			s.fault = simFault{simFaults[op.n%uint32(len(simFaults))], int(op.n >> 8 % 16), 1 + int(op.n>>16%4/3)}
		}},
		{"cancel", 1, 0, func(s *simulation, _ simOp) {
			if s.pass != nil {
				s.pass.end()
			}
		}},
		{"take over", 4, opLocks | opADDs, func(s *simulation, op simOp) { // a late DEL, and another container gets the address at once
			b := pick(s.leaked, op.n, func(b *simSandbox) bool { return len(b.addrs) > 0 && b.addrs[0].net == 0 })
			if b != nil && len(s.pods) < 10 {
				s.leaked = slices.DeleteFunc(s.leaked, func(o *simSandbox) bool { return o == b })
				s.del(b)
				p := s.startPod(&simPod{})
				s.beginADD(p, p.nets, b.addrs[0].ip, false)
			}
		}},
	}
}

var (
	timeSteps = []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, 2 * time.Minute, 3 * time.Minute, 6 * time.Minute,
		8 * time.Minute, 20 * time.Minute, 3 * time.Hour}
	clockSteps = []time.Duration{-10 * 365 * 24 * time.Hour, -time.Hour, -time.Minute, -time.Second, -150 * time.Millisecond,
		150 * time.Millisecond, time.Second, time.Minute, time.Hour, 10 * 365 * 24 * time.Hour}
)

func randomOps(rnd *rand.Rand, n int, nested bool) []simOp {
	total, kinds, out := 0, simOps(), make([]simOp, n)
	for _, k := range kinds {
		total += k.weight
	}
	for i := range out {
		at := rnd.IntN(total)
		for _, k := range kinds {
			if at -= k.weight; at < 0 {
				out[i].what = k.name
				break
			}
		}
		out[i].n = rnd.Uint32()
		if what := &out[i].what; *what == "pass" || *what == "restart" {
			if nested {
				*what = "proceed"
			} else if rnd.IntN(3) > 0 {
				out[i].inner = randomOps(rnd, rnd.IntN(60), true)
			}
		}
	}
	return out
}

// pick returns one of those that are ok, or the zero value.
func pick[T any](from []T, n uint32, ok func(T) bool) (none T) {
	var can []T
	for _, x := range from {
		if ok(x) {
			can = append(can, x)
		}
	}
	if len(can) == 0 {
		return none
	}
	return can[int(n)%len(can)]
}

// do runs one operation if it is possible.
func (s *simulation) do(op simOp) {
	s.steps++
	kinds := simOps()
	k := kinds[slices.IndexFunc(kinds, func(k simOpKind) bool { return k.name == op.what })]
	if k.is&opLocks > 0 && s.locked() || k.is&opADDs > 0 && s.pass != nil && s.pass.noADD {
		return
	}
	k.do(s, op)
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
