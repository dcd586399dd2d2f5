// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

func (s *simulation) startPod(p *simPod) *simPod {
	s.serial++
	p.uid, p.started, p.startedAt = fmt.Sprintf("uid%d", s.serial), s.now, s.wall()
	if p.name == "" {
		p.name = fmt.Sprintf("pod%d", s.serial)
	}
	if p.nets == nil {
		p.nets = []int{0}
	}
	s.pods = append(s.pods, p)
	return p
}

// beginADD starts the ADD of a new sandbox, and makes its first reservation. The other steps follow later.
func (s *simulation) beginADD(p *simPod, nets []int, wants netip.Addr, invisible bool) *simSandbox {
	s.serial++
	b := &simSandbox{name: fmt.Sprintf("sandbox%d", s.serial), podName: "another tool", serial: s.serial, pod: p, alive: true, wants: wants,
		made: s.now, last: s.now, invisible: invisible && s.canBeInvisible()}
	b.id = hex64(b.name)
	if s.told.names = append(s.told.names, b.id, "<"+b.name+">"); p == nil {
		if b.id, b.invisible = "default-"+b.id, false; s.config.freeText && b.serial%2 == 0 { // an address on no interface
			b.id, b.invisible, b.freeText = fmt.Sprintf("tool-%d", b.serial), true, true
		}
	} else {
		b.podName, p.sandboxes = p.uid, append(p.sandboxes, b)
	}
	s.sandboxes = append(s.sandboxes, b)
	for _, net := range nets {
		for set := range s.nets[net].ranges {
			b.todo = append(b.todo, func() bool { return s.reserve(b, net, set) })
		}
		b.todo = append(b.todo, func() bool { // the chain of this network has succeeded
			if !b.freeText { // by no ADD of a runtime
				s.cache[simAttachment{net, b.id}] = simRecord{b, s.wall()}
			}
			return true
		})
	}
	s.proceed(b)
	return b
}

// reserve is a step of an ADD: host-local's own allocator reserves an address of one range.
func (s *simulation) reserve(b *simSandbox, net, set int) bool {
	var requested []byte
	if net == 0 && b.wants.IsValid() && b.wants.Is4() == (set == 0) {
		requested = b.wants.AsSlice()
	}
	cfg, err := s.nets[net].ranges[set].Get(b.id, "eth0", requested)
	if err != nil {
		return false
	}
	ip, _ := netip.AddrFromSlice(cfg.Address.IP)
	a := simAddress{net, ip.Unmap()}
	s.stamp(a, b)
	if other := s.holder(a); other != nil {
		s.violate("%s is held by %s and was given to %s", s.name(a), other.name, b.name)
	}
	if len(b.addrs) == 0 {
		b.made = s.now
	}
	b.last, b.addrs = s.now, append(b.addrs, a)
	return true
}

// stamp sets a file's timestamp by the node's clock, a few milliseconds early as the kernel does, and remembers the file. A file with the
// inode of the one before it (not on tmpfs) must have another change time, for which stamp waits: simulated time does not advance that.
func (s *simulation) stamp(a simAddress, owner *simSandbox) {
	age := time.Duration(s.serial%10) * time.Millisecond
	at, last := s.wall().Add(-age), s.stats[a]
	for st := last; st.Ino == last.Ino && st.Ctim == last.Ctim; s.stats[a] = st {
		if err := errors.Join(os.Chtimes(s.path(a), at, at), syscall.Stat(s.path(a), &st)); err != nil {
			s.violate("stamping %s: %v", s.name(a), err)
			return
		}
	}
	if s.pass != nil {
		delete(s.pass.removed, a)
	}
	s.files[a] = &simFile{owner: owner, ino: s.stats[a].Ino, empty: owner == nil && s.stats[a].Size == 0, at: s.passes, stamp: at}
}

// proceed runs the next step of an ADD in flight.
func (s *simulation) proceed(b *simSandbox) {
	if len(b.todo) == 0 {
		b.done = true
		if b.pod != nil && s.age(b) >= s.due() {
			b.listed = true // A3
		}
		return
	}
	step, rest := b.todo[0], b.todo[1:]
	if b.todo = rest; !step() {
		s.stop(b, delNow)
	}
}

// finishADD runs the remaining steps of an ADD.
func (s *simulation) finishADD(b *simSandbox) {
	for b.inFlight() {
		s.proceed(b)
	}
}

// delOutcomes are what happens to the DEL of a stopped sandbox. Not yet: it is NOTREADY, and still listed.
var delOutcomes = []string{delNow, delTwice, delLate, delLost, delNotYet}

const delNow, delTwice, delLate, delLost, delNotYet = "now", "twice", "later", "lost", "not yet"

// stop stops a sandbox: first its namespace goes, then its reservations, depending on the DEL.
func (s *simulation) stop(b *simSandbox, outcome string) {
	b.alive, b.todo = false, nil // its namespace is gone, so it no longer holds its addresses
	if outcome == delNotYet && b.listed {
		return
	}
	b.listed = false
	s.sandboxes = slices.DeleteFunc(s.sandboxes, func(o *simSandbox) bool { return o == b })
	if outcome == delNow || outcome == delTwice {
		s.del(b)
	}
	if outcome == delTwice || outcome == delLate {
		s.pending = append(s.pending, b)
	} else if outcome != delNow {
		s.leaked = append(s.leaked, b)
	}
}

// del runs CNI DEL with host-local's own code, in every network.
func (s *simulation) del(b *simSandbox) {
	there := slices.DeleteFunc(slices.Clone(b.addrs), func(a simAddress) bool {
		return s.files[a] == nil || s.files[a].owner != b || !s.onDisk(a)
	})
	for i, n := range s.nets {
		for _, r := range n.ranges {
			if err := r.Release(b.id, "eth0"); err != nil {
				s.violate("DEL of %s: %v", b.name, err)
			}
		}
		delete(s.cache, simAttachment{i, b.id})
	}
	for _, a := range b.addrs {
		if was := slices.Contains(there, a); was && !s.onDisk(a) {
			s.forgetFile(a)
		} else if !s.onDisk(a) {
			delete(s.files, a)
		}
	}
}

// forgetFile records that an operation, not the pass, removed a file.
func (s *simulation) forgetFile(a simAddress) {
	if s.pass != nil && s.files[a].at < s.passes {
		s.pass.removed[a] = true
	}
	delete(s.files, a)
}

// outcome returns what happens to the DELs of an operation.
func (op simOp) outcome() string { return delOutcomes[op.n>>8%uint32(len(delOutcomes))] }

// stopAll stops some sandboxes of a pod.
func (s *simulation) stopAll(p *simPod, outcome string, which func(*simSandbox) bool) {
	for _, b := range slices.Clone(p.sandboxes) {
		if which(b) {
			s.stop(b, outcome)
		}
	}
}

// remove stops a pod and removes it.
func (s *simulation) remove(p *simPod, op simOp) {
	s.stopAll(p, op.outcome(), func(b *simSandbox) bool { return b.alive || b.listed })
	s.forget(p)
}

// forget removes a pod from the lists of kubelet and the API server.
func (s *simulation) forget(p *simPod) {
	s.pods = slices.DeleteFunc(s.pods, func(o *simPod) bool { return o == p })
	if !s.statusOnly() && !s.config.asOf {
		s.syncAPI()
	}
}

// known returns the addresses in files, sorted.
func (s *simulation) known() []simAddress {
	return slices.SortedFunc(maps.Keys(s.files), func(a, b simAddress) int { return cmp.Or(a.net-b.net, a.ip.Compare(b.ip)) })
}

// stepClock sets the wall clock, or suspends the node, which also advances the clock since boot.
func (s *simulation) stepClock(op simOp) {
	if s.pass == nil && s.unread { // while the process runs, the agent notices each step (A4)
		s.lookAtClock()
	} else if s.unread { // and two of them might cancel out
		return
	}
	step := clockSteps[int(op.n)%len(clockSteps)]
	s.offset += step
	if step > 0 && op.n>>8%8 == 0 {
		s.bootedAt -= step
	}
	s.stepAt, s.unread = s.now, true
}

// restartAgent restarts the agent, and may call the hook.
func (s *simulation) restartAgent(op simOp) {
	if s.restart(); op.n%4 == 0 {
		_, _ = s.doPass(occasion{hook: true, noADD: op.n>>4%2 == 0 && s.canAssert()}, op.inner)
	}
}

func (s *simulation) reboot(n uint32) {
	const behind = 10 * 365 * 24 * time.Hour // on a board without a battery
	const down = 2 * bootTolerance           // a machine is down for longer: no file is of the very moment of its boot
	late := n>>14%4 == 1
	s.now += down
	s.tell()
	s.bootedAt, s.memory = s.now, 0
	_ = os.Remove(s.memoryPath()) // it is on a file system that a boot empties
	if late {
		for _, p := range slices.Clone(s.pods) {
			if !p.hostNetwork {
				s.forget(p)
			}
		}
		s.offset -= behind
	}
	for _, b := range slices.Clone(s.sandboxes) {
		b.alive, b.todo = false, nil
		if b.listed = b.listed && n>>8%2 == 0; !b.listed { // containerd's root directory is kept or wiped
			s.sandboxes = slices.DeleteFunc(s.sandboxes, func(o *simSandbox) bool { return o == b })
		}
		if n>>9%3 == 0 && len(b.addrs) > 0 { // the last write is lost
			if a := b.addrs[0]; s.files[a] != nil && s.files[a].owner == b && s.onDisk(a) {
				_ = os.Truncate(s.path(a), 0)
				s.now -= down
				s.stamp(a, nil)
				s.now += down
			}
		}
	}
	for _, p := range s.pods {
		if n>>12%2 == 0 {
			p.statusIPs = nil // kubelet noticed
		}
	}
	s.pending = nil
	s.boot(5 * time.Second)
	if !late {
		return
	}
	if !s.has(fromAPI, fromKubelet) && n>>20%2 == 0 { // the clock is set after this, and before the agent starts (hazard 80)
		p := s.startPod(&simPod{nets: []int{0, 1}})
		s.beginADD(p, p.nets, netip.Addr{}, false)
	}
	s.offset += behind
}
