// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
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
	s.trace("pod %s starts, in networks %v (host network: %t, static: %t)", p.uid, p.nets, p.hostNetwork, p.static)
	return p
}

// beginADD starts the ADD of a new sandbox, and makes its first reservation. The other steps
// follow later.
func (s *simulation) beginADD(p *simPod, nets []int, wants netip.Addr, invisible bool) *simSandbox {
	s.serial++
	b := &simSandbox{name: fmt.Sprintf("sandbox%d", s.serial), serial: s.serial, id: fmt.Sprintf("%064x", s.serial),
		pod: p, alive: true, wants: wants, made: s.now, last: s.now, invisible: invisible && s.canBeInvisible()}
	if p == nil {
		if b.id, b.invisible = "default-"+b.id, false; s.config.freeText && b.serial%2 == 0 { // an address on no interface
			b.id, b.invisible, b.freeText = fmt.Sprintf("tool-%d", b.serial), true, true
		}
	} else {
		p.sandboxes = append(p.sandboxes, b)
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
		s.trace("ADD of %s in %s: %v", b.name, s.nets[net].name, err)
		return false
	}
	ip, _ := netip.AddrFromSlice(cfg.Address.IP)
	a := simAddress{net, ip.Unmap()}
	s.stamp(a, b)
	s.trace("ADD reserved %s for %s of %s", s.name(a), b.name, b.podName())
	if other := s.held[a]; other != nil {
		s.violate("%s is held by %s and was given to %s", s.name(a), other.name, b.name)
	}
	s.held[a] = b
	if len(b.addrs) == 0 {
		b.made = s.now
	}
	b.last, b.addrs = s.now, append(b.addrs, a)
	return true
}

func (b *simSandbox) podName() string {
	if b.pod == nil {
		return "another tool"
	}
	return b.pod.uid
}

// stamp sets a file's timestamp by the node's clock, a few milliseconds early as the kernel
// does, and remembers the file. A file with the inode of the one before it must have another
// change time, for which stamp waits, since simulated time does not advance that.
func (s *simulation) stamp(a simAddress, owner *simSandbox) {
	path := s.path(a)
	at := s.wall().Add(-time.Duration(s.serial%10) * time.Millisecond)
	if err := os.Chtimes(path, at, at); err != nil {
		s.violate("stamping %s: %v", s.name(a), err)
		return
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		s.violate("reading the status of %s: %v", s.name(a), err)
		return
	}
	if s.inodes[a] == st.Ino { // not on tmpfs
		for tick := st.Ctim; st.Ctim == tick; { // until the clock of change times advances
			if err := errors.Join(os.Chtimes(path, at, at), syscall.Stat(path, &st)); err != nil {
				s.violate("stamping %s: %v", s.name(a), err)
				return
			}
		}
	}
	s.inodes[a] = st.Ino
	if s.pass != nil {
		delete(s.pass.removed, a)
	}
	s.files[a] = &simFile{owner: owner, ino: st.Ino, empty: owner == nil && st.Size == 0, at: s.passes, stamp: at}
}

// proceed runs the next step of an ADD in flight.
func (s *simulation) proceed(b *simSandbox) {
	if len(b.todo) == 0 {
		b.done = true
		if b.pod != nil && s.age(b) >= s.due() {
			b.listed = true // A3
		}
		s.trace("ADD of %s is done", b.name)
		return
	}
	step := b.todo[0]
	b.todo = b.todo[1:]
	if !step() {
		s.stop(b, delNow)
	}
}

// finishADD runs the remaining steps of an ADD.
func (s *simulation) finishADD(b *simSandbox) {
	for b.inFlight() {
		s.proceed(b)
	}
}

// A delOutcome is what happens to the DEL of a stopped sandbox.
type delOutcome int

const (
	delNow delOutcome = iota
	delTwice
	delLate
	delLost
	delNotYet // the sandbox is NOTREADY, and still listed
	delOutcomes
)

// stop stops a sandbox: first its namespace goes, then its reservations, depending on the DEL.
func (s *simulation) stop(b *simSandbox, outcome delOutcome) {
	s.trace("%s is stopped, DEL %v", b.name, [...]string{"now", "twice", "later", "lost", "not yet"}[outcome])
	s.terminate(b)
	if outcome == delNotYet && b.listed {
		return
	}
	b.listed = false
	s.sandboxes = slices.DeleteFunc(s.sandboxes, func(o *simSandbox) bool { return o == b })
	switch outcome {
	case delNow:
		s.del(b)
	case delTwice:
		s.del(b)
		s.pending = append(s.pending, b)
	case delLate:
		s.pending = append(s.pending, b)
	default:
		s.leaked = append(s.leaked, b)
	}
}

// terminate removes a sandbox's namespace, so it no longer holds its addresses.
func (s *simulation) terminate(b *simSandbox) {
	if !b.alive {
		return
	}
	b.alive, b.todo = false, nil
	for _, a := range b.addrs {
		if s.held[a] == b {
			delete(s.held, a)
		}
	}
}

// del runs CNI DEL with host-local's own code, in every network.
func (s *simulation) del(b *simSandbox) {
	var there []simAddress
	for _, a := range b.addrs {
		if f := s.files[a]; f != nil && f.owner == b && s.onDisk(a) {
			there = append(there, a)
		}
	}
	for i, n := range s.nets {
		for _, r := range n.ranges {
			if err := r.Release(b.id, "eth0"); err != nil {
				s.violate("DEL of %s: %v", b.name, err)
			}
		}
		delete(s.cache, simAttachment{i, b.id})
	}
	for _, a := range b.addrs {
		if !s.onDisk(a) && !slices.Contains(there, a) {
			delete(s.files, a)
		}
	}
	for _, a := range there {
		if !s.onDisk(a) {
			s.forgetFile(a)
		}
	}
	s.trace("DEL of %s", b.name)
}

// forgetFile records that an operation, not the pass, removed a file.
func (s *simulation) forgetFile(a simAddress) {
	if s.pass != nil && s.files[a].at < s.passes {
		s.pass.removed[a] = true
	}
	delete(s.files, a)
}
