// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A smallNode has two pods, two containers and two addresses, and what the agent remembers of them. A copy is another node.
type smallNode struct {
	smallWorld
	clock clock
	way   string // what happened to it
}

type smallWorld struct {
	now, off, booted int64 // seconds, on the monotonic clock; off is how far the wall clock is ahead of it
	back             int64 // how far the clock was set back since the agent began
	pods             [2]smallPod
	conts            [2]smallCont
	files            [2]smallFile
	steps, gap       int    // steps of the clock; gap in the pass that is under way
	fault            string // of the next source
	saw              uint64 // the node at the gaps before
}

type smallPod struct {
	there, ended                  bool
	startedAt, endedAt, endedMono int64 // by the wall clock, and by the monotonic clock
}

type smallCont struct {
	state, pod     int
	addrs          [2]bool
	listed, status bool  // by the runtime; its first address in its pod's status
	reserved       int64 // by the monotonic clock
}

type smallFile struct {
	owner int
	kind  hostlocal.OwnerState
	stamp int64 // by the wall clock; zero: there is none
}

const notThere, inFlight, added, dead = 0, 1, 2, 3 // states of a container
var smallIPs, smallPods = [2]netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}, [2]string{"web", "db"}

func smallWall(at int64) time.Time      { return simEpoch.Add(time.Duration(at) * time.Second) }
func put[T any](to *T, value T) bool    { *to = value; return true }
func (c *smallCont) alive() bool        { return c.state == inFlight || c.state == added }
func (x *explorer) is(name string) bool { return strings.Contains(x.name, name) }
func (x *explorer) has(k simKind) bool  { return slices.Contains(x.sources, k) }
func (x *explorer) foreign(k int) bool  { return k == 1 && x.is("foreign") }
func (x *explorer) runs(k int) bool     { return x.has(fromRuntime) && !x.foreign(k) } // by the runtime
func (x *explorer) id(k int) string {
	return map[bool]string{true: "default-"}[x.foreign(k)] + hex64(smallPods[k])
}
func (x *explorer) recorded(a int) bool { return x.has(fromRecord) && x.networks[a] == network1 }

// holder and of return the live container that has an address, or is a pod's, or -1.
func (s *smallNode) holder(a int) int {
	return slices.IndexFunc(s.conts[:], func(c smallCont) bool { return c.alive() && c.addrs[a] })
}
func (s *smallNode) of(pod int) int {
	return slices.IndexFunc(s.conts[:], func(c smallCont) bool { return c.alive() && c.pod == pod })
}

func (s *smallNode) reading() reading {
	mono := time.Duration(s.now) * time.Second
	return reading{wall: smallWall(s.now + s.off), mono: mono, boot: mono - time.Duration(s.booted)*time.Second, now: simProcess.Add(mono)}
}

func (s *smallNode) begin() bool { // an agent, which remembers nothing
	s.clock, s.back = clock{}, 0
	s.clock.observe(s.reading())
	return true
}

func (s *smallNode) kill(k int) bool { // without a DEL
	if c := &s.conts[k]; c.alive() {
		c.state, c.listed, c.status = dead, false, c.status && s.pods[c.pod].ended
	}
	return true
}

// reserve reserves the first free address. No two files have the same stamp.
func (x *explorer) reserve(s *smallNode, k int) bool {
	a, c := slices.IndexFunc(s.files[:], func(f smallFile) bool { return f.stamp == 0 }), &s.conts[k]
	if a < 0 || c.state != inFlight || c.addrs[1] {
		return false
	}
	s.files[a], c.addrs[a] = smallFile{k, hostlocal.Owned, s.now + s.off}, true
	if c.reserved == 0 || s.gap == 0 { // a pass that is under way knows the first alone
		c.reserved = s.now
	}
	return x.advance(s, 2)
}

// advance adds to the time. An ADD ends and is listed as soon as it must be (A3), and a finished pod ends.
func (x *explorer) advance(s *smallNode, d int64) bool {
	s.now += d
	for k := range s.conts {
		c := &s.conts[k]
		if p := &s.pods[c.pod]; p.ended && s.now-p.endedMono >= 300 && !x.has(fromRuntime) {
			s.kill(k)
		} else if c.alive() && s.now-c.reserved >= x.lag && (x.runs(k) || x.has(fromRecord)) {
			c.state, c.listed = added, x.runs(k)
		}
	}
	return true
}

// set sets the wall clock, if the agent read it since it was set.
func (s *smallNode) set(by int64) bool {
	unread := s.reading().wall.Sub(s.clock.anchor.wall) != s.reading().mono-s.clock.anchor.mono
	s.off, s.back = s.off+by, s.back+max(0, -by)
	return !unread && s.steps < 2 && put(&s.steps, s.steps+1)
}

// damaged reports whether only its pod's status shows the address of a live container.
func (s *smallNode) damaged(k int) bool {
	kinds := []hostlocal.OwnerState{hostlocal.Empty, hostlocal.Malformed}
	return slices.ContainsFunc(s.files[:], func(f smallFile) bool { return f.owner == k && slices.Contains(kinds, f.kind) })
}

func (x *explorer) damage(s *smallNode, a int, kind hostlocal.OwnerState) bool {
	if k := s.holder(a); k >= 0 && kind != hostlocal.Unreadable { // its pod's status must show the address, as long as it lives (A3)
		c := &s.conts[k]
		if p := &s.pods[c.pod]; !c.status || a == 1 && c.addrs[0] || x.is("more") || !p.there || p.ended {
			return false
		}
	}
	return s.gap == 0 && s.files[a].kind == hostlocal.Owned && put(&s.files[a].kind, kind)
}

// A smallEvent happens to the thing of a number. Where it is impossible, or excluded by A1 to A4, it is false.
type smallEvent struct {
	name string
	do   func(s *smallNode, c *smallCont, k int) bool
}

func (x *explorer) allEvents() []smallEvent {
	return []smallEvent{
		{"wait L", func(s *smallNode, _ *smallCont, _ int) bool { return x.advance(s, x.lag) }},
		{"clock -1m or +1h", func(s *smallNode, _ *smallCont, n int) bool { return s.set([]int64{-60, 3600}[n]) }},
		{"another address", func(s *smallNode, _ *smallCont, k int) bool { return x.reserve(s, k) }},
		{"ADD ends", func(_ *smallNode, c *smallCont, _ int) bool { return c.state == inFlight && put(&c.state, added) }},
		{"ADD", func(s *smallNode, _ *smallCont, i int) bool {
			k := slices.IndexFunc(s.conts[:], func(c smallCont) bool { return c.state == notThere })
			kube, runs := x.has(fromKubelet), s.pods[i].there && !s.pods[i].ended
			if k < 0 || s.of(i) >= 0 || (x.foreign(k) || !kube) && k != i || kube && !x.foreign(k) && !runs {
				return false
			}
			s.conts[k] = smallCont{state: inFlight, pod: i}
			return x.reserve(s, k)
		}},
		{"in runtime", func(_ *smallNode, c *smallCont, k int) bool {
			return c.state == added && x.runs(k) && put(&c.listed, true)
		}},
		{"in status", func(s *smallNode, c *smallCont, _ int) bool {
			return c.state == added && s.pods[c.pod].there && put(&c.status, true)
		}},
		{"dies", func(s *smallNode, _ *smallCont, k int) bool { return s.kill(k) }},
		{"DEL", func(s *smallNode, c *smallCont, k int) bool {
			s.kill(k)
			for a, f := range s.files {
				if f.owner == k && (f.kind == hostlocal.Owned || f.kind == hostlocal.Unreadable) {
					s.files[a] = smallFile{}
				}
			}
			return c.status || put(c, smallCont{}) // then another may have its place
		}},
		{"pod deleted", func(s *smallNode, _ *smallCont, i int) bool { // if a container runs, another source must name it (A2)
			c := &s.conts[max(s.of(i), 0)]
			named := s.gap == 0 && c.state == added && (c.listed || c.addrs[0] && x.recorded(0) || x.recorded(1)) && !s.damaged(s.of(i))
			return (s.of(i) < 0 || named) && put(&s.pods[i].there, false)
		}},
		{"pod finishes", func(s *smallNode, _ *smallCont, i int) bool {
			p, k := &s.pods[i], s.of(i)
			p.endedMono, p.endedAt = s.now, s.now+s.off
			return p.there && !p.ended && k >= 0 && s.conts[k].status && !s.damaged(k) && put(&p.ended, true)
		}},
		{"pod starts", func(s *smallNode, _ *smallCont, i int) bool {
			p, may := &s.pods[i], s.gap == 0 && x.has(fromKubelet) && !x.foreign(i) && s.of(i) < 0
			return may && !p.there && !p.ended && put(&p.there, true) && put(&p.startedAt, s.now+s.off)
		}},
		{"reboot", func(s *smallNode, _ *smallCont, n int) bool { // n: with a clock that is an hour behind
			s.now, s.booted, s.off = s.now+60, s.now+55, s.off-3600*int64(n)
			return s.gap == 0 && s.steps == 0 && put(&s.steps, n) && s.kill(0) && s.kill(1) && s.begin()
		}},
		{"agent restarts", func(s *smallNode, _ *smallCont, _ int) bool {
			return s.gap == 0 && (s.steps == 0 || x.is("beyond A4")) && s.begin()
		}},
		{"file emptied", func(s *smallNode, _ *smallCont, a int) bool { return x.damage(s, a, hostlocal.Empty) }},
		{"file broken", func(s *smallNode, _ *smallCont, a int) bool { return x.damage(s, a, hostlocal.Malformed) }},
		{"file unreadable", func(s *smallNode, _ *smallCont, a int) bool { return x.damage(s, a, hostlocal.Unreadable) }},
		{"next source fails", func(s *smallNode, _ *smallCont, _ int) bool { return s.gap > 0 && put(&s.fault, "fails") }},
		{"next source says nothing", func(s *smallNode, _ *smallCont, _ int) bool { return s.gap > 0 && put(&s.fault, "is empty") }},
	}
}

func (x *explorer) List(context.Context) (list hostlocal.Listing, err error) {
	list.Networks = slices.Compact(slices.Clone(x.networks[:]))
	for a, f := range x.s.files {
		if f.stamp != 0 {
			list.Reservations = append(list.Reservations, x.reservation(a))
		}
	}
	return list, nil
}

// reservation returns a file as the library reads it.
func (x *explorer) reservation(a int) hostlocal.Reservation {
	f, at := x.s.files[a], smallWall(x.s.files[a].stamp).Add(-4*time.Millisecond)
	if x.is("coarse") {
		at = smallWall(f.stamp &^ 1)
	}
	r := hostlocal.Reservation{Network: x.networks[a], IP: smallIPs[a], Owner: f.kind, ReservedAt: at}
	if f.kind == hostlocal.Owned {
		r.ContainerID, r.IfName = x.id(f.owner), "eth0"
	}
	return r
}

func (x *explorer) Release(_ context.Context, all ...*hostlocal.Reservation) (result hostlocal.ReleaseResult, err error) {
	x.atGap()
	for _, r := range all {
		a, outcome := slices.Index(smallIPs[:], r.IP), hostlocal.Changed
		if x.reservation(a) == *r {
			if x.s.holder(a) >= 0 || r.Owner == hostlocal.Malformed || r.Network == "third" {
				x.broken = "it releases a live container's address, a malformed file, or one in a network that was not named"
			}
			x.s.files[a], outcome = smallFile{}, hostlocal.Released
		}
		result.Outcomes, result.Errs = append(result.Outcomes, outcome), append(result.Errs, nil)
	}
	return result, nil
}

// Pods asks the sources one after the other.
func (x *explorer) Pods(context.Context) (all podsource.Answer, err error) {
	for _, kind := range x.sources {
		x.atGap()
		a, fault := x.answer(kind), x.s.fault
		if x.s.fault = ""; fault == "fails" || fault == "is empty" && !a.Supplementary && !a.Authoritative {
			a.Pods, x.refused = nil, true
		}
		if all.Parts = append(all.Parts, a); fault == "fails" {
			return podsource.Answer{}, errAway
		}
	}
	return all, nil
}

// answer returns what a source answers now.
func (x *explorer) answer(kind simKind) podsource.Answer {
	s, a := x.s, map[simKind]podsource.Answer{fromKubelet: kubeletAnswer(), fromRuntime: criAnswer(),
		fromRecord: recordAnswer([]string{network1}), fromIntents: {Source: "intents", Supplementary: true, SeesADDs: []string{network1}}}[kind]
	for k, c := range s.conts {
		if kind == fromRuntime && c.listed || kind == fromIntents && c.state == inFlight ||
			kind == fromRecord && c.state == added && (c.addrs[0] || x.recorded(1)) {
			a.Pods = append(a.Pods, sandbox(smallPods[c.pod], x.id(k)))
		}
	}
	for i := 1; i >= 0 && kind == fromKubelet; i-- {
		p, pod := &s.pods[i], startingPod(smallPods[i], smallWall(s.pods[i].startedAt))
		for _, c := range s.conts {
			if c.status && c.pod == i && x.is("more") {
				pod.IPs, pod.MoreIPs = ips("192.0.2.1"), true
			} else if c.status && c.pod == i {
				pod.IPs = []netip.Addr{smallIPs[slices.Index(c.addrs[:], true)]}
			}
		}
		if pod.Finished = p.ended; p.ended {
			pod.FinishedAt = smallWall(p.endedAt)
		}
		if p.there {
			a.Pods = append(a.Pods, pod)
		}
	}
	return a
}
