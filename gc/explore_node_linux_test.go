// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A smallNode is a node with two pods, two containers and two addresses, and what the agent
// remembers of it. It is copied by assignment: nothing writes into what its clock points to.
type smallNode struct {
	smallWorld
	clock clock
}

type smallWorld struct {
	now, off, booted, stepAt int64    // in seconds, on the monotonic clock; off is how far the wall clock is ahead of it
	read, high, back         int64    // off as the agent last read it, the highest that it read, and how far it was below that
	low, left                int64    // the earliest boot by any of its readings, and the latest wall time from before a step
	mono, wall               [8]int64 // when something happened, by either clock: see below
	pods                     [2]smallPod
	conts                    [2]smallContainer
	files                    [2]smallFile
	held                     *smallWorld // as a source saw it, which repeats its list; or nil
	late                     bool        // since the boot the wall clock is an hour behind
	steps, gens, fault       uint8       // steps of the clock, files made, and what is wrong with the next source
}

// The indexes of times, each for the first of two pods, containers or files.
const (
	begunAt, endedAt                   = 0, 2       // of a pod, by both clocks
	madeFirst, madeLast                = 4, 6       // a container's addresses, by the monotonic clock
	cachedAt, stamp                    = 4, 6       // of a container's entry in the cache, and of a file, by the wall clock
	away, empty, partial               = 1, 2, 3    // faults
	whole, emptied, broken, unreadable = 0, 1, 2, 3 // files
)

type smallPod struct{ there, ended bool }

type smallContainer struct {
	state, pod, first      uint8 // first is the index of its first address
	addrs                  [2]bool
	listed, status, hidden bool // by the runtime; in its pod's status; its ADD has no process just now
}

const (
	notThere = iota
	inFlight
	added
	dead
)

func (c *smallContainer) alive() bool { return c.state == inFlight || c.state == added }

type smallFile struct{ gen, owner, kind uint8 } // gen zero: there is none

var smallKinds = [...]hostlocal.OwnerState{hostlocal.Owned, hostlocal.Empty, hostlocal.Malformed, hostlocal.Unreadable}

func smallWall(at int64) time.Time { return simEpoch.Add(time.Duration(at) * time.Second) }

func (s *smallWorld) reading() reading {
	mono := time.Duration(s.now) * time.Second
	return reading{wall: smallWall(s.now + s.off), mono: mono, boot: mono - time.Duration(s.booted)*time.Second, now: simProcess.Add(mono)}
}

// holder returns the live container that has an address, or that is of a pod, or nil.
func (s *smallWorld) holder(has func(*smallContainer) bool) *smallContainer {
	for k := range s.conts {
		if c := &s.conts[k]; c.alive() && has(c) {
			return c
		}
	}
	return nil
}

func (s *smallWorld) at(a int) *smallContainer {
	return s.holder(func(c *smallContainer) bool { return c.addrs[a] })
}
func (s *smallWorld) of(i int) *smallContainer {
	return s.holder(func(c *smallContainer) bool { return int(c.pod) == i })
}

// begin is the start of an agent, which remembers nothing.
func (s *smallNode) begin() {
	s.clock, s.held, s.read, s.high, s.back, s.low, s.left = clock{}, nil, s.off, s.off, 0, s.booted+s.off, 0
	s.clock.observe(s.reading())
}

func (s *smallWorld) end(c *smallContainer, k int) { // of its ADD
	if c.state == inFlight {
		c.state, s.wall[cachedAt+k] = added, s.now+s.off
	}
}

func (s *smallWorld) kill(c *smallContainer) { // without a DEL
	if c.alive() {
		c.state, c.listed, c.hidden, c.status = dead, false, false, c.status && s.pods[c.pod].ended
	}
}

func (s *smallWorld) reserve(a, k int) {
	s.gens++
	s.files[a], s.wall[stamp+a] = smallFile{gen: s.gens, owner: uint8(k)}, s.now+s.off
	s.conts[k].addrs[a], s.mono[madeLast+k] = true, s.now
}

// damaged reports whether only a pod's status shows the address of a damaged file.
func (x *explorer) damaged(s *smallWorld, c *smallContainer) bool {
	return !x.has(fromProcesses) && (c.addrs[0] && s.files[0].kind%unreadable > 0 || c.addrs[1] && s.files[1].kind%unreadable > 0)
}

// named reports whether some source names a container, and will as long as it lives.
func (x *explorer) named(s *smallWorld, c *smallContainer) bool {
	return c.state == added && (x.has(fromProcesses) || c.listed || x.has(fromRecord) && x.set.networks[c.first] == network1 ||
		c.status && !x.has(fromRuntime) && !s.pods[c.pod].ended)
}

// hides reports whether the clock was set since a live container, or its pod, began.
func (s *smallWorld) hides(k int) bool {
	c, since := &s.conts[k], s.mono[madeFirst+k]
	if at := s.mono[begunAt+int(c.pod)]; at > 0 {
		since = min(since, at)
	}
	return c.alive() && s.stepAt > 0 && since <= s.stepAt
}

// mayRestart reports whether the clock was not set where a new agent could not know it (A4).
func (x *explorer) mayRestart(s *smallWorld, booted bool) bool {
	for i, p := range s.pods {
		c := &s.conts[i]
		if p.there && s.wall[begunAt+i] > s.now+s.off || !booted && s.hides(i) && !x.named(s, c) {
			return x.beyondA4
		}
	}
	return true
}

// advance adds to the time. A runtime lists in time what it must (A3), and a finished pod ends.
func (x *explorer) advance(s *smallWorld, d int64) {
	for k := range s.conts {
		c, since := &s.conts[k], s.mono[madeLast+k]
		if x.inPass {
			since = x.mid.listed.mono[madeLast+k]
		}
		if s.pods[c.pod].ended && s.now+d-s.mono[endedAt+int(c.pod)] >= 300 && !x.has(fromRuntime) {
			s.kill(c)
		}
		lists := x.has(fromRuntime) && !x.foreign(k)
		if c.alive() && s.now+d-since >= x.lag && (lists || x.has(fromRecord) && (!x.has(fromIntents) || x.set.dated == fromRecord && !x.has(fromKubelet))) {
			s.end(c, k)
			c.listed = lists
		}
	}
	s.now += d
}

// smallEvents is what may happen at any time, between passes, or only during one; # is the number of one of two things.
var smallEvents = [3][]string{
	{"wait MinAge", "wait L", "wait StartingFor", "clock -1m", "clock +1h", "ADD for pod #", "another address for c#", "ADD of c# ends",
		"c# listed by the runtime", "c# in its pod's status", "c# dies", "DEL of c#", "pod # deleted", "pod # finishes", "cache wiped"},
	{"pod # starts", "reboot", "reboot, clock -1h", "agent restarts", "late clock set, agent restarts", "file # emptied", "file # malformed",
		"file # unreadable", "a source repeats this list"},
	{"c# between two plugins", "next source fails", "next source says nothing", "next source can't read all"},
}

// apply lets something happen. It changes nothing where that is impossible, or A1 to A4 exclude it.
func (x *explorer) apply(s *smallNode, what string, k int) {
	kube, c, p, f, w := x.has(fromKubelet), &s.conts[k], &s.pods[k], &s.files[k], &s.smallWorld
	free := slices.IndexFunc(s.files[:], func(f smallFile) bool { return f.gen == 0 })
	unread := s.reading().wall.Sub(s.clock.anchor.wall) != s.reading().mono-s.clock.anchor.mono
	switch own := s.of(k); what {
	case "wait MinAge", "wait L", "wait StartingFor":
		if d := map[byte]int64{'M': x.minAge, 'L': x.lag, 'S': x.starting}[what[5]]; what[5] == 'L' || what[5] == 'M' && d < x.lag || what[5] == 'S' && kube && x.has(fromRuntime) {
			x.advance(w, d)
		}
	case "clock -1m", "clock +1h":
		if !unread && s.steps < 2 { // two steps may cancel out
			s.off, s.stepAt, s.steps = s.off+map[byte]int64{'-': -60, '+': 3600}[what[6]], s.now, s.steps+1
		}
	case "pod # starts":
		if kube && !p.there && !p.ended && own == nil && !x.foreign(k) {
			p.there, s.mono[begunAt+k], s.wall[begunAt+k] = true, s.now, s.now+s.off
		}
	case "ADD for pod #":
		n := slices.IndexFunc(s.conts[:], func(c smallContainer) bool { return c.state == notThere })
		if n >= 0 && free >= 0 && !x.noADD && own == nil && (kube && p.there && !p.ended && !x.foreign(n) || n == k && (!kube || x.foreign(n))) {
			s.conts[n], s.mono[madeFirst+n] = smallContainer{state: inFlight, pod: uint8(k), first: uint8(free)}, s.now
			s.reserve(free, n)
		}
	case "another address for c#":
		if free >= 0 && !x.noADD && c.state == inFlight {
			s.reserve(free, k)
		}
	case "ADD of c# ends":
		s.end(c, k)
	case "c# listed by the runtime":
		c.listed = c.state == added && x.has(fromRuntime) && !x.foreign(k)
	case "c# in its pod's status":
		c.status = c.status || c.state == added && s.pods[c.pod].there
	case "c# dies":
		s.kill(c)
	case "DEL of c#":
		for a := range s.files {
			if f := &s.files[a]; int(f.owner) == k && f.kind == whole {
				*f = smallFile{}
			}
		}
		s.kill(c)
		c.addrs, s.wall[cachedAt+k] = [2]bool{}, 0
	case "pod # deleted": // by force, if its container is alive: another source must name it (A2)
		if own == nil || x.named(w, own) && !x.inPass && len(x.set.sources) > 1 && !x.damaged(w, own) {
			p.there = false
		}
	case "pod # finishes":
		if p.there && !p.ended && own != nil && own.status && !x.damaged(w, own) {
			p.ended, s.mono[endedAt+k], s.wall[endedAt+k] = true, s.now, s.now+s.off
		}
	case "cache wiped":
		s.wall[cachedAt], s.wall[cachedAt+1] = 0, 0
	case "reboot", "reboot, clock -1h":
		if late := what != "reboot"; x.mayRestart(w, true) && (!late || s.steps < 2) {
			if s.now, s.booted = s.now+60, s.now+55; late {
				s.off, s.late, s.steps = s.off-3600, true, s.steps+1
			}
			s.kill(&s.conts[0])
			s.kill(&s.conts[1])
			s.begin()
		}
	case "agent restarts", "late clock set, agent restarts":
		if set := what[0] == 'l'; x.mayRestart(w, false) && (!set || s.late && !(s.pods[0].there || s.pods[1].there)) {
			if set {
				s.off, s.late, s.stepAt = s.off+3600, false, s.now
			}
			s.begin()
		}
	case "file # emptied", "file # malformed": // a source must show a live holder's address (A3)
		c := s.at(k)
		shown := c == nil || c.state == added && (x.has(fromProcesses) || c.status && int(c.first) == k && s.pods[c.pod].there && !s.pods[c.pod].ended)
		if f.gen > 0 && f.kind == whole && shown && !x.set.more {
			s.gens++
			f.gen, f.kind = s.gens, map[byte]uint8{'e': emptied, 'm': broken}[what[7]]
		}
	case "file # unreadable":
		if f.gen > 0 && f.kind == whole {
			f.kind = unreadable
		}
	case "a source repeats this list":
		if x.has(x.set.dated) {
			held := s.smallWorld
			held.held, s.held = nil, &held
		}
	case "c# between two plugins":
		if x.has(fromProcesses) && !x.mid.hidden && c.state == inFlight && s.now-s.mono[madeFirst+k] < x.lag {
			c.hidden, x.mid.hidden = true, true
		}
	case "next source fails", "next source says nothing", "next source can't read all":
		if what[12] != 'c' || x.has(fromProcesses) {
			s.fault = max(s.fault, map[byte]uint8{'f': away, 's': empty, 'c': partial}[what[12]])
		}
	}
}

// List is that of the disk.
func (x *explorer) List(context.Context) (hostlocal.Listing, error) {
	x.mid.listed = x.s.smallWorld
	list := hostlocal.Listing{Networks: slices.Compact(slices.Clone(x.set.networks[:]))}
	for a, f := range x.s.files {
		if f.gen > 0 {
			list.Reservations = append(list.Reservations, x.reservation(a))
		}
	}
	return list, nil
}

// reservation returns a file as the library reads it, with the identity of a real one.
func (x *explorer) reservation(a int) hostlocal.Reservation {
	f := x.s.files[a]
	r := x.files[f.gen]
	r.Network, r.IP, r.Owner, r.ReservedAt = x.set.networks[a], smallIPs[a], smallKinds[f.kind], smallWall(x.s.wall[stamp+a]).Add(-4*time.Millisecond)
	if r.ContainerID = ""; f.kind == whole {
		r.ContainerID, r.IfName = x.ids[f.owner], "eth0"
	}
	if x.set.coarse {
		r.ReservedAt = smallWall(x.s.wall[stamp+a] &^ 1)
	}
	return r
}

// Release is that of the disk.
func (x *explorer) Release(_ context.Context, all ...*hostlocal.Reservation) (result hostlocal.ReleaseResult, err error) {
	x.atGap()
	for _, r := range all {
		a, outcome := x.index(r), hostlocal.Changed
		if f := &x.s.files[a]; f.gen == 0 {
			outcome = hostlocal.Gone
		} else if x.reservation(a) == *r {
			if x.s.at(a) != nil {
				x.violate("the address %v of a live container is released", r.IP)
			}
			*f, outcome = smallFile{}, hostlocal.Released
		}
		result.Outcomes, result.Errs = append(result.Outcomes, outcome), append(result.Errs, nil)
	}
	return result, nil
}

// Pods asks the sources one after the other.
func (x *explorer) Pods(context.Context) (whole podsource.Answer, err error) {
	for _, kind := range x.set.sources {
		x.atGap()
		a := x.answer(kind)
		for i := range x.mid.said { // which decisions may depend on
			x.mid.said[i] = x.mid.said[i] << 3
		}
		x.mid.said[0] |= uint64(x.s.fault)
		for _, p := range a.Pods {
			for i := range 2 {
				bit := func(of int, is bool, value uint64) {
					if is {
						x.mid.said[of+i] |= value
					}
				}
				bit(1, p.Name == smallPods[i], 1)
				bit(1, p.Name == smallPods[i] && p.Finished, 2)
				bit(3, slices.Contains(p.ContainerIDs, x.ids[i]), 1)
				bit(5, slices.Contains(p.IPs, smallIPs[i]), map[string]uint64{smallPods[0]: 1, smallPods[1]: 2, "": 4}[p.Name])
				bit(3, a.Cache != nil && slices.ContainsFunc(a.Cache.Entries, func(e podsource.Attachment) bool { return e.ContainerID == x.ids[i] }), 2)
			}
		}
		fault := x.s.fault
		if x.s.fault = 0; fault == away {
			x.mid.refused = true
			return whole, errAway
		}
		if fault == empty && !a.Supplementary && !a.Authoritative {
			a.Pods, x.mid.refused = nil, true
		}
		whole.Parts = append(whole.Parts, a)
	}
	return whole, nil
}

var smallIPs = [2]netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}

var smallPods = [2]string{"web", "db"}

// answer returns what a source answers now, or what it has repeated since it was last up to date.
func (x *explorer) answer(kind simKind) (a podsource.Answer) {
	w, asOf := x.s.smallWorld, time.Time{}
	if kind == x.set.dated && x.s.held != nil {
		w = *x.s.held
		age := x.mid.at.now + x.mid.at.off - w.now - w.off
		if asOf = w.reading().wall; kind == fromKubelet {
			asOf, age = w.reading().now, x.mid.at.now-w.now
		}
		x.mid.refused = x.mid.refused || age > 2*x.interval() && !x.noADD
	}
	var pods []podsource.Pod
	var ids []string
	var entries []podsource.Attachment
	var since time.Time
	for k := range w.conts {
		c, id := &w.conts[k], x.ids[k]
		switch {
		case kind == fromRuntime && c.listed:
			pods = append(pods, sandbox(smallPods[c.pod], id))
		case kind == fromProcesses && c.state == added:
			pods = append(pods, podsource.Pod{IPs: x.addresses(c), Origin: "namespace of " + id})
		case kind == fromProcesses && c.state == inFlight && !c.hidden, kind == fromIntents && c.state == inFlight:
			pods = append(pods, adding(id))
		case kind == fromRecord && c.state == added && (c.addrs[0] || x.set.networks[1] == network1):
			ids = append(ids, id)
		case kind == fromCache && w.wall[cachedAt+k] > 0:
			at := smallWall(w.wall[cachedAt+k])
			if since.IsZero() || at.Before(since) {
				since = at
			}
			for _, n := range slices.Compact(slices.Clone(x.set.networks[:])) {
				p := attached(n, id)
				switch {
				case x.set.pathless:
					p.Unproven, p.StartedAt = true, at
					pods = append(pods, p)
				case c.alive():
					p.IPs = x.addresses(c)
					pods = append(pods, p)
				default:
					entries = append(entries, stale(n, id))
				}
			}
		}
	}
	for i, p := range w.pods {
		if kind != fromKubelet || !p.there {
			continue
		}
		pod := startingPod(smallPods[i], smallWall(w.wall[begunAt+i]))
		for _, c := range w.conts {
			if c.status && int(c.pod) == i {
				if pod.IPs, pod.MoreIPs = []netip.Addr{smallIPs[c.first]}, x.set.more; x.set.more {
					pod.IPs = ips("192.0.2.1") // of another plugin
				}
			}
		}
		if pod.Finished = p.ended; p.ended && !x.set.noEnd {
			pod.FinishedAt = smallWall(w.wall[endedAt+i])
		}
		if i == 0 && x.set.static {
			pod.StartedAt = time.Time{}
		}
		pods = append([]podsource.Pod{pod}, pods...) // the later one first
	}
	switch kind {
	case fromKubelet:
		a = kubeletAnswer(pods...)
	case fromRuntime:
		a = criAnswer(pods...)
	case fromProcesses:
		if a = netnsAnswer(pods...); x.s.fault == partial {
			a = podsource.Answer{Source: a.Source, Supplementary: true}
		}
	case fromCache:
		a = cacheAnswer(pods, entries...)
		a.Cache.Since = since
	case fromRecord:
		a = recordAnswer([]string{network1}, ids...)
	case fromIntents:
		a = podsource.Answer{Source: "intents", Pods: pods, Supplementary: true, SeesADDs: []string{network1}}
	}
	x.s.conts[0].hidden, x.s.conts[1].hidden = x.s.conts[0].hidden && kind != fromProcesses, x.s.conts[1].hidden && kind != fromProcesses
	a.AsOf = asOf
	return a
}

func (x *explorer) addresses(c *smallContainer) (ips []netip.Addr) {
	for i, on := range c.addrs {
		if on {
			ips = append(ips, smallIPs[i])
		}
	}
	return ips
}
