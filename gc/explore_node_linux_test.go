// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A smallNode has two pods, two containers and two addresses, and what the agent remembers of
// them. It is copied by assignment: nothing writes into what it points to.
type smallNode struct {
	smallWorld
	held  *smallWorld // as a source saw it that repeats its list, or nil
	clock clock
}

type smallWorld struct {
	now, off, booted     int64       // seconds, on the monotonic clock; off is how far the wall clock is ahead of it
	back                 int64       // how far the clock was set back since the agent began
	times                [5][2]int64 // when what happened; zero is never
	pods                 [2]struct{ there, ended bool }
	conts                [2]smallCont
	files                [2]smallFile
	steps, serial, fault uint8 // steps of the clock, files made, and the fault of the next source
}

type smallCont struct {
	state, pod, first uint8 // first is the index of its first address
	addrs             [2]bool
	listed, status    bool // by the runtime; in its pod's status
}

type smallFile struct{ gen, owner, kind uint8 } // gen zero: there is none

const (
	reserved, endedMono, startedAt, endedAt, stamp = 0, 1, 2, 3, 4 // times, by the monotonic clock and by the wall clock
	notThere, inFlight, added, dead                = 0, 1, 2, 3    // states of a container
	whole, emptied, broken, unreadable             = 0, 1, 2, 3    // kinds of files
	away, empty                                    = 1, 2          // faults
	anyTime, between, during                       = 0, 1, 2       // when an event may happen: between two passes, during one
)

var (
	smallIPs   = [2]netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}
	smallPods  = [2]string{"web", "db"}
	smallKinds = [...]hostlocal.OwnerState{hostlocal.Owned, hostlocal.Empty, hostlocal.Malformed, hostlocal.Unreadable}
)

func smallWall(at int64) time.Time      { return simEpoch.Add(time.Duration(at) * time.Second) }
func flip[T any](by uint8, pair *[2]T)  { pair[0], pair[1] = pair[by], pair[1^by] }
func put[T any](to *T, value T) bool    { *to = value; return true }
func (c *smallCont) alive() bool        { return c.state == inFlight || c.state == added }
func (x *explorer) is(name string) bool { return strings.Contains(x.set.name, name) }
func (x *explorer) has(k simKind) bool  { return slices.Contains(x.set.sources, k) }
func (x *explorer) foreign(k int) bool  { return k == 1 && x.is("foreign") }
func (x *explorer) recorded(a int) bool { return x.has(fromRecord) && x.set.networks[a] == network1 }

// holder and of return the live container that has an address, or is a pod's, or -1.
func (s *smallWorld) holder(a int) int {
	return s.find(func(c *smallCont) bool { return c.alive() && c.addrs[a] })
}
func (s *smallWorld) of(pod int) int {
	return s.find(func(c *smallCont) bool { return c.alive() && int(c.pod) == pod })
}
func (s *smallWorld) find(is func(c *smallCont) bool) int {
	return slices.IndexFunc(s.conts[:], func(c smallCont) bool { return is(&c) })
}

func (s *smallWorld) reading() reading {
	mono := time.Duration(s.now) * time.Second
	return reading{wall: smallWall(s.now + s.off), mono: mono, boot: mono - time.Duration(s.booted)*time.Second, now: simProcess.Add(mono)}
}

// as returns a world by the clocks of another, with its containers or its addresses exchanged, so that alike ones are equal.
func (s smallWorld) as(now, off int64, conts, addrs uint8) smallWorld {
	for n := range s.times {
		for i, at := range s.times[n] {
			if at != 0 {
				s.times[n][i] -= now + 1 + off*int64(n/startedAt)
			}
		}
	}
	for i := range s.conts {
		if c := &s.conts[i]; c.alive() || c.status {
			c.first ^= addrs
			flip(addrs, &c.addrs)
		}
		if f := &s.files[i]; f.gen > 0 {
			f.gen, f.owner = 1, f.owner^conts
		}
	}
	flip(conts, &s.conts)
	flip(conts, &s.times[reserved])
	flip(addrs, &s.files)
	flip(addrs, &s.times[stamp])
	s.now, s.off, s.booted, s.serial = s.now-now, s.off-off, s.booted-now, 0
	return s
}

func (s *smallNode) begin() bool { // an agent, which remembers nothing
	s.clock, s.held, s.back = clock{}, nil, 0
	s.clock.observe(s.reading())
	return true
}

func (s *smallWorld) kill(k int) bool { // without a DEL
	if c := &s.conts[k]; c.alive() {
		*c, s.times[reserved][k] = smallCont{state: dead, pod: c.pod, first: c.first, status: c.status && s.pods[c.pod].ended}, 0
	}
	return true
}

func (s *smallWorld) reserve(k int) bool { // the first free address
	a := slices.IndexFunc(s.files[:], func(f smallFile) bool { return f.gen == 0 })
	if a < 0 || s.conts[k].state != inFlight {
		return false
	}
	s.serial++
	s.files[a], s.times[stamp][a] = smallFile{s.serial, uint8(k), whole}, s.now+s.off
	s.conts[k].addrs[a], s.times[reserved][k] = true, s.now
	return true
}

func (s *smallWorld) owns(k int) bool { // a file
	return slices.ContainsFunc(s.files[:], func(f smallFile) bool { return f.gen > 0 && int(f.owner) == k })
}

// damaged reports whether only its pod's status shows a live container's address.
func (s *smallWorld) damaged(k int) bool {
	return s.conts[k].addrs[0] && s.files[0].kind%unreadable > 0 || s.conts[k].addrs[1] && s.files[1].kind%unreadable > 0
}

// advance adds to the time. An ADD ends and is listed as soon as it must be (A3), and a finished pod ends.
func (x *explorer) advance(s *smallWorld, d int64) bool {
	for k := range s.conts {
		c, since, runtime := &s.conts[k], s.times[reserved][k], x.has(fromRuntime) && !x.foreign(k)
		if x.mid != nil {
			since = x.mid.listed.times[reserved][k]
		}
		if s.pods[c.pod].ended && s.now+d-s.times[endedMono][c.pod] >= 300 && !x.has(fromRuntime) {
			s.kill(k)
		} else if c.alive() && s.now+d-since >= x.lag && (runtime || x.has(fromRecord)) {
			c.state, c.listed = added, runtime
		}
	}
	s.now += d
	return true
}

// A smallEvent happens to the thing of its number, if its name has a #. Where it is impossible, or
// excluded by A1 to A4, it is false or changes nothing.
type smallEvent struct {
	name string
	when int
	do   func(s *smallNode, c *smallCont, k int) bool
}

// set sets the wall clock, if the agent read it since it was set.
func (s *smallNode) set(by int64) bool {
	unread := s.reading().wall.Sub(s.clock.anchor.wall) != s.reading().mono-s.clock.anchor.mono
	s.off, s.back = s.off+by, s.back+max(0, -by)
	return !unread && s.steps < 2 && put(&s.steps, s.steps+1)
}

func (s *smallNode) reboot(by int64) bool {
	s.now, s.booted, s.off = s.now+60, s.now+55, s.off+by
	return s.steps == 0 && put(&s.steps, uint8(min(-by, 1))) && s.kill(0) && s.kill(1) && s.begin()
}

func (x *explorer) damage(s *smallNode, a int, kind uint8) bool {
	f, k := &s.files[a], s.holder(a)
	ok := f.gen > 0 && f.kind == whole
	if c := &s.conts[max(k, 0)]; k >= 0 && kind != unreadable { // a pod's status must show the address, as long as the file is damaged (A3)
		ok = ok && c.status && int(c.first) == a && !x.is("more") && s.pods[c.pod].there && !s.pods[c.pod].ended
	}
	if s.serial++; kind != unreadable {
		f.gen = s.serial
	}
	return ok && put(&f.kind, kind)
}

func (x *explorer) allEvents() []smallEvent {
	return []smallEvent{
		{"wait L", anyTime, func(s *smallNode, _ *smallCont, _ int) bool { return x.advance(&s.smallWorld, x.lag) }},
		{"wait StartingFor", anyTime, func(s *smallNode, _ *smallCont, _ int) bool {
			return x.has(fromRuntime) && x.advance(&s.smallWorld, x.starting)
		}},
		{"clock -1m", anyTime, func(s *smallNode, _ *smallCont, _ int) bool { return s.set(-60) }},
		{"clock +1h", anyTime, func(s *smallNode, _ *smallCont, _ int) bool { return s.set(3600) }},
		{"ADD for pod #", anyTime, func(s *smallNode, c *smallCont, i int) bool {
			k, kube, pod := s.find(func(c *smallCont) bool { return c.state == notThere }), x.has(fromKubelet), s.pods[i]
			if k < 0 || s.of(i) >= 0 || (x.foreign(k) || !kube) && k != i || kube && !x.foreign(k) && (!pod.there || pod.ended) {
				return false
			}
			s.conts[k] = smallCont{state: inFlight, pod: uint8(i), first: min(s.files[0].gen, 1)}
			return s.reserve(k)
		}},
		{"another address for c#", anyTime, func(s *smallNode, c *smallCont, k int) bool { return s.reserve(k) }},
		{"ADD of c# ends", anyTime, func(s *smallNode, c *smallCont, k int) bool { return c.state == inFlight && put(&c.state, added) }},
		{"c# in runtime", anyTime, func(s *smallNode, c *smallCont, k int) bool {
			return c.state == added && x.has(fromRuntime) && !x.foreign(k) && put(&c.listed, true)
		}},
		{"c# in status", anyTime, func(s *smallNode, c *smallCont, k int) bool {
			return c.state == added && s.pods[c.pod].there && put(&c.status, true)
		}},
		{"c# dies", anyTime, func(s *smallNode, c *smallCont, k int) bool { return s.kill(k) }},
		{"DEL of c#", anyTime, func(s *smallNode, c *smallCont, k int) bool {
			s.kill(k)
			for a, f := range s.files {
				if f.gen > 0 && int(f.owner) == k && f.kind == whole {
					s.files[a], s.times[stamp][a] = smallFile{}, 0
				}
			}
			free := c.state == dead && !c.status && s.held == nil && x.mid == nil && !s.owns(k) // then another may have its place
			return !free || put(c, smallCont{})
		}},
		{"pod # deleted", anyTime, func(s *smallNode, c *smallCont, i int) bool { // by force: another source must name its container (A2)
			k := s.of(i)
			if s.pods[i].there = false; !s.pods[i].ended {
				s.times[startedAt][i] = 0
			}
			return k < 0 || s.conts[k].state == added && (s.conts[k].listed || x.recorded(int(s.conts[k].first))) && x.mid == nil && !s.damaged(k)
		}},
		{"pod # finishes", anyTime, func(s *smallNode, c *smallCont, i int) bool {
			k := s.of(i)
			s.times[endedMono][i], s.times[endedAt][i] = s.now, s.now+s.off
			return s.pods[i].there && !s.pods[i].ended && k >= 0 && s.conts[k].status && !s.damaged(k) && put(&s.pods[i].ended, true)
		}},
		{"pod # starts", between, func(s *smallNode, c *smallCont, i int) bool {
			s.times[startedAt][i] = s.now + s.off
			return x.has(fromKubelet) && !s.pods[i].there && !s.pods[i].ended && s.of(i) < 0 && !x.foreign(i) && put(&s.pods[i].there, true)
		}},
		{"reboot", between, func(s *smallNode, _ *smallCont, _ int) bool { return s.reboot(0) }},
		{"reboot, clock -1h", between, func(s *smallNode, _ *smallCont, _ int) bool { return s.reboot(-3600) }},
		{"agent restarts", between, func(s *smallNode, _ *smallCont, _ int) bool { return (s.steps == 0 || x.beyondA4) && s.begin() }},
		{"file # emptied", between, func(s *smallNode, c *smallCont, a int) bool { return x.damage(s, a, emptied) }},
		{"file # broken", between, func(s *smallNode, c *smallCont, a int) bool { return x.damage(s, a, broken) }},
		{"file # unreadable", between, func(s *smallNode, c *smallCont, a int) bool { return x.damage(s, a, unreadable) }},
		{"a source repeats this list", between, func(s *smallNode, _ *smallCont, _ int) bool {
			w := s.smallWorld
			return x.set.dated != "" && put(&s.held, &w)
		}},
		{"next source fails", during, func(s *smallNode, _ *smallCont, _ int) bool { return put(&s.fault, away) }},
		{"next source says nothing", during, func(s *smallNode, _ *smallCont, _ int) bool { return put(&s.fault, empty) }},
	}
}

func (x *explorer) List(context.Context) (list hostlocal.Listing, err error) {
	x.mid.listed, list.Networks = x.s.smallWorld, slices.Compact(slices.Clone(x.set.networks[:]))
	for a, f := range x.s.files {
		if f.gen > 0 {
			list.Reservations = append(list.Reservations, x.reservation(a))
		}
	}
	return list, nil
}

// reservation returns a file as the library reads it, with the identity of a real one.
func (x *explorer) reservation(a int) hostlocal.Reservation {
	f, at := x.s.files[a], smallWall(x.s.times[stamp][a]).Add(-4*time.Millisecond)
	if x.is("coarse") {
		at = smallWall(x.s.times[stamp][a] &^ 1)
	}
	r := x.files[f.gen]
	if r.Network, r.IP, r.Owner, r.ReservedAt, r.ContainerID = x.set.networks[a], smallIPs[a], smallKinds[f.kind], at, ""; f.kind == whole {
		r.ContainerID, r.IfName = x.ids[f.owner], "eth0"
	}
	return r
}

func (x *explorer) Release(_ context.Context, all ...*hostlocal.Reservation) (result hostlocal.ReleaseResult, err error) {
	x.atGap()
	for _, r := range all {
		a, outcome := slices.Index(smallIPs[:], r.IP), hostlocal.Changed
		if x.s.files[a].gen > 0 && x.reservation(a) == *r {
			if x.s.holder(a) >= 0 || r.Owner == hostlocal.Malformed || r.Network == "third" {
				x.broken = fmt.Sprintf("%v is released, which is a live container's, malformed, or in a network that was not named", r.IP)
			}
			x.s.files[a], x.s.times[stamp][a], outcome = smallFile{}, 0, hostlocal.Released
		}
		result.Outcomes, result.Errs = append(result.Outcomes, outcome), append(result.Errs, nil)
	}
	return result, nil
}

// Pods asks the sources one after the other.
func (x *explorer) Pods(context.Context) (all podsource.Answer, err error) {
	for _, kind := range x.set.sources {
		x.atGap()
		a, fault := x.answer(kind), x.s.fault
		if x.s.fault = 0; fault == away || fault == empty && !a.Supplementary && !a.Authoritative {
			a.Pods, x.mid.refused = nil, true
		}
		if all.Parts = append(all.Parts, a); fault == away {
			return podsource.Answer{}, errAway
		}
	}
	return all, nil
}

// answer returns what a source answers now, or what it repeats.
func (x *explorer) answer(kind simKind) podsource.Answer {
	w, a := &x.s.smallWorld, map[simKind]podsource.Answer{fromKubelet: kubeletAnswer(), fromRuntime: criAnswer(),
		fromRecord: recordAnswer([]string{network1}), fromIntents: {Source: "intents", Supplementary: true, SeesADDs: []string{network1}}}[kind]
	if kind == x.set.dated && x.s.held != nil {
		w, a.AsOf = x.s.held, x.s.held.reading().wall
	}
	for k, c := range w.conts {
		if kind == fromRuntime && c.listed || kind == fromIntents && c.state == inFlight ||
			kind == fromRecord && c.state == added && (c.addrs[0] || x.recorded(1)) {
			a.Pods = append(a.Pods, sandbox(smallPods[c.pod], x.ids[k]))
		}
	}
	for i := 1; i >= 0 && kind == fromKubelet; i-- {
		pod := startingPod(smallPods[i], smallWall(w.times[startedAt][i]))
		for _, c := range w.conts {
			if c.status && int(c.pod) == i && x.is("more") {
				pod.IPs, pod.MoreIPs = ips("192.0.2.1"), true
			} else if c.status && int(c.pod) == i {
				pod.IPs = []netip.Addr{smallIPs[c.first]}
			}
		}
		if pod.Finished = w.pods[i].ended; pod.Finished {
			pod.FinishedAt = smallWall(w.times[endedAt][i])
		}
		if w.pods[i].there {
			a.Pods = append(a.Pods, pod)
		}
	}
	return a
}
