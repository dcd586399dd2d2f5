// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"os"
	"slices"
	"time"
)

// doOther runs the operations of others than the runtime and kubelet.
func (s *simulation) doOther(op simOp) {
	n := op.n
	switch op.what {
	case opLateDEL:
		if len(s.pending) > 0 {
			i := int(n) % len(s.pending)
			s.del(s.pending[i])
			s.pending = slices.Delete(s.pending, i, i+1)
		}
	case opForeign: // another tool's container in one of the networks
		net, ok := pick(s.foreignNetworks(), n, anyOf)
		if !ok {
			return
		}
		b := s.beginADD(nil, []int{net}, netip.Addr{}, false)
		if !s.canRunForeign() && b.alive && !b.freeText {
			s.stop(b, delLost)
		}
	case opTakeOver: // a late DEL, and another container gets the address at once
		b, ok := pick(s.leaked, n, func(b *simSandbox) bool { return len(b.addrs) > 0 && b.addrs[0].net == 0 })
		if ok && len(s.pods) < 10 {
			s.leaked = slices.DeleteFunc(s.leaked, func(o *simSandbox) bool { return o == b })
			s.del(b)
			p := s.startPod(&simPod{})
			s.beginADD(p, p.nets, b.addrs[0].ip, false)
		}
	}
}

func (s *simulation) doFile(op simOp) {
	switch op.what {
	case opRemove: // a person removes a leaked file
		a, ok := pick(s.known(), op.n, func(a simAddress) bool { return s.held[a] == nil && s.files[a].owner != nil })
		if ok && s.onDisk(a) {
			_ = os.Remove(s.path(a))
			s.forgetFile(a)
			s.trace("a person removes %s", s.name(a))
		}
	case opDamage: // the file of a live sandbox, whose address a source shows (hazard 84)
		b, ok := pick(s.sandboxes, op.n, s.canDamage)
		if !ok {
			return
		}
		content := []byte("\x00\x00\x00")[:op.n>>8%2*3]
		for _, a := range b.addrs { // of its first network
			if a.net == b.addrs[0].net && s.onDisk(a) && os.WriteFile(s.path(a), content, 0o600) == nil {
				s.stamp(a, b)
				s.files[a].damaged, s.files[a].empty = true, len(content) == 0
				s.trace("the file of %s is damaged", s.name(a))
			}
		}
	case opGarbage:
		a := simAddress{int(op.n % 3), netip.AddrFrom4([4]byte{10, 99, 0, byte(op.n >> 8)})}
		if s.files[a] == nil && os.WriteFile(s.path(a), []byte("not\na\nreservation"), 0o600) == nil {
			s.stamp(a, nil)
		}
	}
}

// known returns the addresses in files, sorted.
func (s *simulation) known() (all []simAddress) {
	for a := range s.files {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b simAddress) int {
		if n := a.net - b.net; n != 0 {
			return n
		}
		return a.ip.Compare(b.ip)
	})
	return all
}

// stepClock sets the wall clock, or suspends the node, which also advances the clock since
// boot.
func (s *simulation) stepClock(n uint32) {
	if !s.canStep() {
		return
	}
	if s.unread { // the agent notices each step
		s.lookAtClock()
	}
	step := clockSteps[int(n)%len(clockSteps)]
	s.offset += step
	if step > 0 && n>>8%8 == 0 {
		s.bootedAt -= step
		s.trace("the node was suspended")
	}
	s.stepAt, s.unread = s.now, true
	s.trace("the clock is set by %v", step)
}

// doRestart restarts the agent or the node, and may call the hook.
func (s *simulation) doRestart(op simOp) {
	late := s.late > 0 && op.what == opRestart
	switch {
	case op.what == opReboot && s.canReboot():
		s.reboot(op.n)
	case op.what == opReboot || s.late > 0 && !s.canSetLateClock() || !s.canRestart():
		return
	}
	if s.late > 0 { // before the agent starts (hazard 80)
		if !s.has(fromAPI, fromKubelet) && op.n>>20%2 == 0 {
			p := s.startPod(&simPod{nets: []int{0, 1}})
			s.beginADD(p, p.nets, netip.Addr{}, false)
		}
		s.offset, s.late = s.offset+s.late, 0
		s.trace("the clock is set, long after the boot")
	}
	s.trace("the agent restarts")
	if err := s.restart(); err != nil {
		s.violate("making a reconciler: %v", err)
	}
	if op.n%4 == 0 || late {
		_, _ = s.doPass(occasion{hook: true, noADD: op.n>>4%2 == 0 && s.canAssert()}, op.inner)
	}
}

func (s *simulation) reboot(n uint32) {
	s.trace("the node reboots")
	s.bootedAt, s.memory = s.now, 0
	_ = os.Remove(s.memoryPath()) // it is on a file system that a boot empties
	if n>>14%4 == 1 && s.late == 0 {
		for _, p := range slices.Clone(s.pods) {
			if !p.hostNetwork {
				s.forget(p)
			}
		}
		s.late = 10 * 365 * 24 * time.Hour
		s.offset -= s.late
		s.trace("its clock is ten years behind")
	}
	for _, b := range slices.Clone(s.sandboxes) {
		s.terminate(b)
		if b.listed = b.listed && n>>8%2 == 0; !b.listed { // containerd's root directory is kept or wiped
			s.sandboxes = slices.DeleteFunc(s.sandboxes, func(o *simSandbox) bool { return o == b })
		}
		if n>>9%3 == 0 && len(b.addrs) > 0 { // the last write is lost
			if a := b.addrs[0]; s.files[a] != nil && s.files[a].owner == b && s.onDisk(a) {
				_ = os.Truncate(s.path(a), 0)
				s.stamp(a, nil)
			}
		}
	}
	for _, p := range s.pods {
		if n>>12%2 == 0 {
			p.statusIPs = nil // kubelet noticed
		}
	}
	s.pending = nil
	s.now += 5 * time.Second // before the agent is started
}
