// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A smallNode is a node with two pods, two containers and two addresses, and all that the agent
// remembers of it. It is copied by assignment: nothing writes into what its clock points to.
type smallNode struct {
	smallWorld
	clock clock
}

// Times are in seconds, on the monotonic clock or, where it says so, on the wall clock.
type smallWorld struct {
	now, off, booted int64 // off is what the wall clock shows more than the monotonic one
	stepAt           int64 // when the wall clock was last set; zero: never
	high, back       int64 // the highest off that this agent read, and how far off was below that
	late             bool  // the wall clock is an hour behind since the boot
	steps, gens      uint8
	fault            smallFault // of the next source
	pods             [2]smallPod
	conts            [2]smallContainer
	files            [2]smallFile
	held             smallList
}

type smallPod struct {
	there, ended                bool
	at, started, endAt, endWall int64 // started and endWall are wall times
}

type smallContainer struct {
	state                  smallState
	pod, first             uint8
	addrs                  [2]bool
	listed, status, hidden bool  // by the runtime; in its pod's status; its ADD has no process just now
	made, last, atList     int64 // when it got its first and last address; and the last before the pass listed them
	cached                 int64 // wall time of its entry in the cache; zero: none
}

type smallState uint8

const (
	notThere smallState = iota
	inFlight
	added
	dead
)

func (c *smallContainer) alive() bool { return c.state == inFlight || c.state == added }

type smallFile struct {
	gen, owner, kind uint8 // gen zero: there is none
	stamp            int64 // wall time
}

var smallKinds = [...]hostlocal.OwnerState{hostlocal.Owned, hostlocal.Empty, hostlocal.Malformed, hostlocal.Unreadable}

// A smallList is what a source listed earlier, and repeats.
type smallList struct {
	at, wall int64 // zero: it lists anew
	pods     [2]smallPod
	conts    [2]smallContainer
}

type smallFault uint8

const (
	noSmallFault smallFault = iota
	sourceAway
	sourceEmpty
	sourcePartial // it could not read everything, and declares nothing
)

var smallIDs = [2]string{hex64("c0"), hex64("c1")}

func (s *smallNode) wall() int64 { return s.now + s.off }

func smallWall(at int64) time.Time { return simEpoch.Add(time.Duration(at) * time.Second) }

func (s *smallNode) reading() reading {
	mono := time.Duration(s.now) * time.Second
	return reading{wall: smallWall(s.wall()), mono: mono, boot: mono - time.Duration(s.booted)*time.Second, now: simProcess.Add(mono)}
}

// unread reports whether the clock was set since the agent read it.
func (s *smallNode) unread() bool {
	a, r := &s.clock.anchor, s.reading()
	return r.wall.Sub(a.wall) != r.mono-a.mono
}

// holder returns the live container that holds an address, or nil.
func (s *smallNode) holder(a int) *smallContainer {
	for k := range s.conts {
		if c := &s.conts[k]; c.alive() && c.addrs[a] {
			return c
		}
	}
	return nil
}

// advance adds to the time. A runtime lists in time what it must (A3), and a finished pod ends.
func (x *explorer) advance(s *smallNode, d int64) bool {
	for k := range s.conts {
		c := &s.conts[k]
		since := c.last
		if x.inPass {
			since = c.atList
		}
		if p := &s.pods[c.pod]; p.ended && s.now+d-p.endAt >= 300 && !x.has(fromRuntime) {
			s.kill(c)
		}
		if (x.has(fromRuntime) || x.set.dated == fromRecord) && c.alive() && s.now+d-since >= x.lag {
			s.end(c)
			c.listed = x.has(fromRuntime)
		}
	}
	s.now += d
	return true
}

// step sets the clock, unless the agent has not seen the last step yet: two may cancel out (A4).
func (x *explorer) step(s *smallNode, d int64) bool {
	if s.unread() || s.steps > 1 {
		return false
	}
	s.off, s.stepAt, s.steps = s.off+d, s.now, s.steps+1
	return true
}

// begin is the start of an agent, which remembers nothing.
func (s *smallNode) begin() {
	s.clock, s.high, s.back, s.held = clock{}, s.off, 0, smallList{}
	s.clock.observe(s.reading())
}

// future reports whether a pod's start is in the future: its next reservation would be from before it (A3).
func (s *smallNode) future() bool {
	return slices.ContainsFunc(s.pods[:], func(p smallPod) bool { return p.there && p.started > s.wall() })
}

// hides reports whether the clock was set since a container or its pod began.
func (s *smallNode) hides(c *smallContainer) bool {
	began := c.made
	if p := s.pods[c.pod]; p.at > 0 {
		began = min(began, p.at)
	}
	return c.alive() && s.stepAt > 0 && began <= s.stepAt
}

// named reports whether a source names a container, and will as long as it lives.
func (x *explorer) named(s *smallNode, c *smallContainer) bool {
	return c.state == added && (x.has(fromProcesses, fromRecord) || c.listed || c.status && !x.has(fromRuntime) && !s.pods[c.pod].ended)
}

// shows reports whether a source shows that a container has an address.
func (x *explorer) shows(s *smallNode, c *smallContainer, a int) bool {
	p := &s.pods[c.pod]
	return c.state == added && (x.has(fromProcesses) || c.status && int(c.first) == a && p.there && !p.ended)
}

// needsStatus reports whether only a status shows the address of a damaged file.
func (x *explorer) needsStatus(s *smallNode, c *smallContainer) bool {
	for a, f := range s.files {
		if c != nil && c.addrs[a] && (f.kind == 1 || f.kind == 2) && !x.has(fromProcesses) {
			return true
		}
	}
	return false
}

func (s *smallNode) reserve(a, k int) {
	s.gens++
	s.files[a] = smallFile{gen: s.gens, owner: uint8(k), stamp: s.wall()}
	s.conts[k].addrs[a], s.conts[k].last = true, s.now
}

// end ends an ADD.
func (s *smallNode) end(c *smallContainer) {
	if c.state == inFlight {
		c.state, c.cached = added, s.wall()
	}
}

// kill ends a container without a DEL.
func (s *smallNode) kill(c *smallContainer) {
	if c.alive() {
		c.state, c.listed, c.status = dead, false, c.status && s.pods[c.pod].ended
	}
}

// The disk.

func (x *explorer) List(context.Context) (hostlocal.Listing, error) {
	x.mid.listed = x.s.files
	for k := range x.s.conts {
		x.s.conts[k].atList = x.s.conts[k].last
	}
	list := hostlocal.Listing{Networks: x.set.dirs()}
	for a, f := range x.s.files {
		if f.gen != 0 {
			list.Reservations = append(list.Reservations, x.reservation(a, f))
		}
	}
	return list, nil
}

// reservation returns a file as the library reads it, with the identity of a real one.
func (x *explorer) reservation(a int, f smallFile) hostlocal.Reservation {
	r := x.files[f.gen]
	r.Network, r.IP, r.ContainerID, r.IfName, r.Owner = x.set.networks[a], x.set.ips[a], "", "", smallKinds[f.kind]
	if r.Owner == hostlocal.Owned {
		r.ContainerID, r.IfName = smallIDs[f.owner], "eth0"
	}
	if r.ReservedAt = smallWall(f.stamp).Add(-4 * time.Millisecond); x.set.coarse {
		r.ReservedAt = smallWall(f.stamp &^ 1)
	}
	return r
}

func (x *explorer) Release(_ context.Context, all ...*hostlocal.Reservation) (result hostlocal.ReleaseResult, err error) {
	x.atGap()
	for _, r := range all {
		a, outcome := slices.Index(x.set.networks[:], r.Network), hostlocal.Changed
		if x.set.ips[a] != r.IP {
			a = 1
		}
		f := &x.s.files[a]
		if now := x.reservation(a, *f); f.gen == 0 {
			outcome = hostlocal.Gone
		} else if now == *r {
			if x.s.holder(a) != nil {
				x.violate("the address %v of a live container is released", r.IP)
			}
			*f, outcome = smallFile{}, hostlocal.Released
		}
		result.Outcomes = append(result.Outcomes, outcome)
	}
	result.Errs = make([]error, len(all))
	return result, nil
}

// The sources, in the order of their ranks.

func (x *explorer) Pods(context.Context) (whole podsource.Answer, err error) {
	for _, kind := range x.set.sources {
		x.atGap()
		a, err := x.answer(kind)
		if whole.Parts = append(whole.Parts, a); err != nil {
			return whole, err
		}
	}
	return whole, nil
}

// answer returns the answer of a source, and notes in x.mid what it says of each thing.
func (x *explorer) answer(kind simKind) (a podsource.Answer, err error) {
	s, said := x.s, &x.mid.said
	pods, conts, fault := s.pods, s.conts, s.fault
	if s.fault = noSmallFault; kind == x.set.dated && s.held.at > 0 {
		pods, conts = s.held.pods, s.held.conts
		age := x.mid.at[0].wall - s.held.wall
		if kind == fromKubelet {
			age = x.mid.at[0].mono - s.held.at
		}
		x.mid.refused = x.mid.refused || age > 600 && !x.noADD
		defer func() {
			if a.AsOf = smallWall(s.held.wall); kind == fromKubelet {
				a.AsOf = simProcess.Add(time.Duration(s.held.at) * time.Second)
			}
		}()
	}
	for i := range said {
		said[i] <<= 2
	}
	const all, ofPods, ofConts, ofAddrs = 0, 1, 3, 5 // indexes of said
	said[all] |= uint64(fault)
	addresses := func(c *smallContainer) (ips []netip.Addr) {
		for i, on := range c.addrs {
			if on {
				ips, said[ofAddrs+i] = append(ips, x.set.ips[i]), said[ofAddrs+i]|1
			}
		}
		return ips
	}
	list := func(state smallState, f func(k int, c *smallContainer)) {
		for k := range conts {
			if c := &conts[k]; c.state == state {
				said[ofConts+k] |= 1
				f(k, c)
			}
		}
	}
	switch kind {
	case fromKubelet:
		var listed []podsource.Pod
		for i, p := range pods {
			if !p.there {
				continue
			}
			pod := startingPod(fmt.Sprint("web", i), smallWall(p.started))
			said[ofPods+i] |= 1
			for _, c := range conts {
				if c.status && int(c.pod) == i {
					pod.IPs = []netip.Addr{x.set.ips[c.first]} // a status has one at first (hazard 08)
					said[ofAddrs+int(c.first)] |= 1 + uint64(i)
				}
			}
			if pod.Finished = p.ended; p.ended {
				said[ofPods+i] |= 2
			}
			if p.ended && !x.set.noEnd {
				pod.FinishedAt = smallWall(p.endWall)
			}
			listed = append(listed, pod)
		}
		a = kubeletAnswer(listed...)
	case fromRuntime:
		var listed []podsource.Pod
		for k := range conts {
			if c := &conts[k]; c.state == added && c.listed {
				said[ofConts+k] |= 1
				listed = append(listed, sandbox(fmt.Sprint("web", c.pod), smallIDs[k]))
			}
		}
		a = criAnswer(listed...)
	case fromProcesses:
		a = netnsAnswer()
		if fault == sourcePartial {
			return podsource.Answer{Source: a.Source, Supplementary: true}, nil
		}
		list(inFlight, func(k int, c *smallContainer) {
			if c.hidden {
				said[ofConts+k] ^= 3
				return
			}
			a.Pods = append(a.Pods, adding(smallIDs[k]))
		})
		list(added, func(k int, c *smallContainer) {
			a.Pods = append(a.Pods, podsource.Pod{IPs: addresses(c), Origin: "namespace of " + smallIDs[k][:4]})
		})
		s.conts[0].hidden, s.conts[1].hidden = false, false
	case fromCache:
		a = x.cache(conts[:], addresses)
	case fromRecord:
		var ids []string
		list(added, func(k int, _ *smallContainer) { ids = append(ids, smallIDs[k]) })
		a = recordAnswer(x.set.dirs(), ids...)
	case fromIntents:
		a = podsource.Answer{Source: "intents", Supplementary: true, SeesADDs: x.set.dirs()}
		list(inFlight, func(k int, _ *smallContainer) { a.Pods = append(a.Pods, adding(smallIDs[k])) })
	}
	switch {
	case fault == sourceAway:
		x.mid.refused = true
		return a, errAway
	case fault == sourceEmpty && !a.Supplementary && !a.Authoritative:
		a.Pods, x.mid.refused = nil, true
	}
	return a, nil
}

// cache returns the answer of libcni's cache.
func (x *explorer) cache(conts []smallContainer, addresses func(*smallContainer) []netip.Addr) podsource.Answer {
	var live []podsource.Pod
	var ended []podsource.Attachment
	var since int64
	for k := range conts {
		c := &conts[k]
		if c.cached == 0 {
			continue
		}
		x.mid.said[3+k] |= 2
		if since == 0 || c.cached < since {
			since = c.cached
		}
		for i, network := range x.set.networks {
			if !c.addrs[i] || i == 1 && c.addrs[0] && network == x.set.networks[0] {
				continue
			}
			p := x.entry(k, network, c.cached)
			switch {
			case x.set.pathless:
				live = append(live, p)
			case c.alive():
				p.IPs, p.Unproven, p.StartedAt = addresses(c), false, time.Time{}
				live = append(live, p)
			default:
				ended = append(ended, stale(network, smallIDs[k]))
			}
		}
	}
	a := cacheAnswer(live, ended...)
	if a.Cache.Since = smallWall(since); since == 0 {
		a.Cache.Since = time.Time{}
	}
	return a
}

// entry returns an entry of the cache that does not show whether it lives.
func (x *explorer) entry(k int, network string, cached int64) podsource.Pod {
	p := attached(network, smallIDs[k])
	p.Unproven, p.StartedAt = true, smallWall(cached)
	return p
}
