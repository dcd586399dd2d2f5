// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A smallNode has two pods, two containers and two addresses, and what the agent remembers of
// them. It is copied by assignment: nothing writes into what its clock points to.
type smallNode struct {
	smallWorld
	clock clock
}

type smallWorld struct {
	missed                     int64    // the last step that the agent can't know of
	now, off, booted, stepAt   int64    // seconds, on the monotonic clock; off is how far the wall clock is ahead of it
	read, high, back, low, due int64    // off as last read, the highest, the most below that; the earliest boot; the latest time before a step
	mono, wall                 [8]int64 // when what happened: see below
	pods                       [2]struct{ there, ended bool }
	conts                      [2]smallContainer
	files                      [2]struct{ gen, owner, kind uint8 } // gen zero: there is none
	held                       *smallWorld                         // as a source saw it that repeats its list, or nil
	late                       bool                                // since the boot the wall clock is an hour behind
	steps, gens, fault         uint8                               // steps of the clock, files made, and the fault of the next source
}

const (
	podStart, podEnd, contFirst, contLast, contCached, fileStamp = 0, 2, 4, 6, 4, 6 // indexes of times, each of two pods, containers or files
	notThere, inFlight, added, dead                              = 0, 1, 2, 3       // states of a container
	whole, emptied, broken, unreadable                           = 0, 1, 2, 3       // kinds of files
	away, empty, partial                                         = 1, 2, 3          // faults
)

type smallContainer struct {
	state, pod, first      uint8 // first is the index of its first address
	addrs                  [2]bool
	listed, status, hidden bool // by the runtime; in its pod's status; its ADD has no process just now
}

var (
	smallIPs   = [2]netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}
	smallPods  = [2]string{"web", "db"}
	smallKinds = [...]hostlocal.OwnerState{hostlocal.Owned, hostlocal.Empty, hostlocal.Malformed, hostlocal.Unreadable}
)

func (c *smallContainer) alive() bool { return c.state == inFlight || c.state == added }

func smallWall(at int64) time.Time { return simEpoch.Add(time.Duration(at) * time.Second) }

func (s *smallWorld) at(a int) int {
	return slices.IndexFunc(s.conts[:], func(c smallContainer) bool { return c.alive() && c.addrs[a] })
}

func (s *smallWorld) of(i int) int {
	return slices.IndexFunc(s.conts[:], func(c smallContainer) bool { return c.alive() && int(c.pod) == i })
}

func (x *explorer) foreign(k int) bool { return x.is("foreign") && k == 1 }

func (x *explorer) visible(k int) bool { return x.has(fromProcesses) && !(x.is("invisible") && k == 1) }

func (x *explorer) recorded(a int) bool { return x.has(fromRecord) && x.set.networks[a] == network1 }

func (x *explorer) is(unusual string) bool { return strings.Contains(x.set.name, unusual) }

func (x *explorer) has(kind simKind) bool { return slices.Contains(x.set.sources, kind) }

func (s *smallWorld) reading() reading {
	mono := time.Duration(s.now) * time.Second
	return reading{wall: smallWall(s.now + s.off), mono: mono, boot: mono - time.Duration(s.booted)*time.Second, now: simProcess.Add(mono)}
}

func (s *smallNode) begin() { // an agent, which remembers nothing
	s.missed = s.stepAt
	s.clock, s.held, s.read, s.high, s.back, s.low, s.due = clock{}, nil, s.off, s.off, 0, s.booted+s.off, 0
	s.clock.observe(s.reading())
}

func (s *smallWorld) end(k int) { // an ADD
	if s.conts[k].state == inFlight {
		s.conts[k].state, s.wall[contCached+k] = added, s.now+s.off
	}
}

func (s *smallWorld) kill(k int) { // without a DEL
	if c := &s.conts[k]; c.alive() {
		c.state, c.listed, c.hidden, c.status = dead, false, false, c.status && s.pods[c.pod].ended
	}
}

func (s *smallWorld) reserve(a, k int) {
	s.gens++
	s.files[a].gen, s.files[a].owner, s.files[a].kind, s.wall[fileStamp+a] = s.gens, uint8(k), whole, s.now+s.off
	s.conts[k].addrs[a], s.mono[contLast+k] = true, s.now
}

// shown reports whether a source shows a live container's address, as long as it has a damaged file (A3).
func (x *explorer) shown(s *smallWorld, k, a int) bool {
	c := &s.conts[k]
	status := c.status && int(c.first) == a && s.pods[c.pod].there && !s.pods[c.pod].ended && !x.is("more")
	return c.state == added && (x.visible(k) || status)
}

// damaged reports whether a container's file is damaged, so that an answer must show its address.
func (s *smallWorld) damaged(k int) bool {
	is := func(a int) bool { return s.conts[k].addrs[a] && s.files[a].kind%unreadable > 0 }
	return is(0) || is(1)
}

// hides reports whether the clock was set since a live container, or its pod, began.
func (s *smallWorld) hides(k int) bool {
	since := s.mono[contFirst+k]
	if at := s.mono[podStart+int(s.conts[k].pod)]; at > 0 {
		since = min(since, at)
	}
	return s.conts[k].alive() && s.stepAt > 0 && since <= s.stepAt
}

// named reports whether a source names a container, and will as long as it lives.
func (x *explorer) named(s *smallWorld, k int) bool {
	c := &s.conts[k]
	status := c.status && !x.has(fromRuntime) && !s.pods[c.pod].ended
	return c.state == added && (x.visible(k) || x.has(fromCache) && s.wall[contCached+k] > 0 || c.listed || x.recorded(int(c.first)) || status)
}

// mayRestart reports whether a new agent may begin, which can't know how the clock was set before (A4).
func (x *explorer) mayRestart(s *smallWorld, boot bool) bool {
	future := func(i int) bool { return s.pods[i].there && s.wall[podStart+i] > s.now+s.off }
	hidden := func(k int) bool { return !boot && s.hides(k) && !x.named(s, k) }
	return x.beyondA4 || !future(0) && !future(1) && !hidden(0) && !hidden(1)
}

// advance adds to the time. An ADD ends and is listed as soon as it must be (A3), and a finished pod ends.
func (x *explorer) advance(s *smallWorld, d int64) {
	for k := range s.conts {
		c, since := &s.conts[k], s.mono[contLast+k]
		if x.inPass {
			since = x.mid.listed.mono[contLast+k]
		}
		if s.pods[c.pod].ended && s.now+d-s.mono[podEnd+int(c.pod)] >= 300 && !x.has(fromRuntime) {
			s.kill(k)
		}
		runtime := x.has(fromRuntime) && !x.foreign(k)
		seen := x.has(fromIntents) && (x.set.dated != fromRecord || x.has(fromKubelet))
		if c.alive() && s.now+d-since >= x.lag && (runtime || x.has(fromRecord) && !seen) {
			s.end(k)
			c.listed = runtime
		}
	}
	s.now += d
}

// smallEvents may happen at any time, between two passes, or during one; # is the number of one of two things.
var smallEvents = [3][]string{
	{"wait MinAge", "wait L", "wait StartingFor", "clock -1m", "clock +1h", "ADD for pod #", "another address for c#", "ADD of c# ends",
		"c# in runtime", "c# in status", "c# dies", "DEL of c#", "pod # deleted", "pod # finishes", "cache wiped"},
	{"pod # starts", "reboot", "reboot, clock -1h", "agent restarts", "clock +1h, agent restarts", "file # emptied", "file # broken",
		"file # unreadable", "a source repeats this list"},
	{"ADD of c# between two plugins", "next source fails", "next source says nothing", "next source can't read all"},
}

// apply lets something happen. It returns false where that changes nothing, is impossible, or is excluded by A1 to A4.
func (x *explorer) apply(s *smallNode, what string, k int) (ok bool) {
	before, kube, c, p, f, w, own := s.smallWorld, x.has(fromKubelet), &s.conts[k], &s.pods[k], &s.files[k], &s.smallWorld, s.of(k)
	free, n := 0, slices.IndexFunc(s.conts[:], func(c smallContainer) bool { return c.state == notThere })
	if s.files[0].gen > 0 {
		free = 1
	}
	full, late := s.files[free].gen > 0, strings.Contains(what, "1h")
	unread := s.reading().wall.Sub(s.clock.anchor.wall) != s.reading().mono-s.clock.anchor.mono
	switch ok = true; what {
	case "wait MinAge":
		x.advance(w, x.minAge)
		ok = x.minAge < x.lag
	case "wait L":
		x.advance(w, x.lag)
	case "wait StartingFor":
		x.advance(w, x.starting)
		ok = kube && x.has(fromRuntime)
	case "clock -1m", "clock +1h":
		ok = !unread && s.steps < 2 // two steps may cancel out
		if s.off, s.stepAt, s.steps = s.off-60, s.now, s.steps+1; late {
			s.off += 3660
		}
	case "pod # starts":
		ok = kube && !p.there && !p.ended && own < 0 && !x.foreign(k)
		p.there, s.mono[podStart+k], s.wall[podStart+k] = true, s.now, s.now+s.off
	case "ADD for pod #":
		listed := kube && p.there && !p.ended && !x.foreign(n) || n == k && (!kube || x.foreign(n))
		if ok = n >= 0 && !full && !x.noADD && own < 0 && listed; ok {
			s.conts[n], s.mono[contFirst+n] = smallContainer{state: inFlight, pod: uint8(k), first: uint8(free)}, s.now
			s.reserve(free, n)
		}
	case "another address for c#":
		s.reserve(free, k)
		ok = !full && !x.noADD && c.state == inFlight
	case "ADD of c# ends":
		s.end(k)
	case "c# in runtime":
		c.listed = c.state == added && x.has(fromRuntime) && !x.foreign(k)
	case "c# in status":
		c.status = c.status || c.state == added && s.pods[c.pod].there
	case "c# dies":
		s.kill(k)
	case "DEL of c#":
		for a := range s.files {
			if f := &s.files[a]; int(f.owner) == k && f.kind == whole {
				f.gen = 0
			}
		}
		s.kill(k)
		c.addrs, s.wall[contCached+k] = [2]bool{}, 0
	case "pod # deleted": // by force, if its container is alive: another source must name it (A2)
		p.there = false
		ok = own < 0 || x.named(w, own) && !x.inPass && len(x.set.sources) > 1 && (x.visible(own) || !s.damaged(own))
	case "pod # finishes":
		ok = p.there && !p.ended && own >= 0 && s.conts[own].status && (x.visible(own) || !s.damaged(own))
		p.ended, s.mono[podEnd+k], s.wall[podEnd+k] = true, s.now, s.now+s.off
	case "cache wiped": // not if nothing else shows a container (A2), or the agent missed a step of the clock since it began (A4)
		lost := x.is("invisible") && s.conts[1].alive() && s.mono[contFirst+1] <= s.missed
		ok = !lost && !(kube && x.inPass)
		s.wall[contCached], s.wall[contCached+1] = 0, 0
	case "reboot", "reboot, clock -1h":
		ok = x.mayRestart(w, true) && (!late || s.steps < 2)
		if s.now, s.booted = s.now+60, s.now+55; late {
			s.off, s.late, s.steps = s.off-3600, true, s.steps+1
		}
		s.kill(0)
		s.kill(1)
		s.begin()
	case "agent restarts", "clock +1h, agent restarts":
		if ok = x.mayRestart(w, false) && (!late || s.late && !s.pods[0].there && !s.pods[1].there); late {
			s.off, s.late, s.stepAt = s.off+3600, false, s.now
		}
		s.begin()
		return ok
	case "file # emptied", "file # broken":
		ok = f.gen > 0 && f.kind == whole && (s.at(k) < 0 || x.shown(w, s.at(k), k))
		s.gens++
		if f.gen, f.kind = s.gens, emptied; what == "file # broken" {
			f.kind = broken
		}
	case "file # unreadable":
		ok = f.gen > 0 && f.kind == whole
		f.kind = unreadable
	case "a source repeats this list":
		ok, before.held, s.held = x.has(x.set.dated), nil, &before
	case "ADD of c# between two plugins":
		ok = x.has(fromProcesses) && !x.mid.hidden && c.state == inFlight && s.now-s.mono[contFirst+k] < x.lag
		c.hidden, x.mid.hidden = true, x.mid.hidden || ok
	default: // a fault
		s.fault = max(s.fault, map[byte]uint8{'f': away, 's': empty, 'c': partial}[what[12]])
		bare := func(k int) bool { // no other source names it (A2)
			c := &s.conts[k]
			return kube && (c.alive() && s.damaged(k) || c.state == added && s.wall[contCached+k] == 0 && !c.listed && !c.status)
		}
		ok = s.fault != partial || x.has(fromProcesses) && !bare(0) && !bare(1)
	}
	return ok && s.smallWorld != before
}
