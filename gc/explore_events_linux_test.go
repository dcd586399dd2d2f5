// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
)

// What may happen next: at any time, between two passes, or only during one. The sign # stands for 0 or 1.
var (
	smallEvents = []string{"wait MinAge", "wait L", "wait StartingFor", "clock -1m", "clock +1h", "ADD for pod #", "another address for c#",
		"ADD of c# ends", "c# listed by the runtime", "c# in its pod's status", "c# dies", "DEL of c#", "pod # deleted", "pod # finishes", "cache wiped"}
	smallOutside = []string{"pod # starts", "reboot", "reboot, clock -1h", "agent restarts", "late clock set, agent restarts",
		"file # emptied", "file # malformed", "file # unreadable", "a source repeats this list"}
	smallInside = []string{"c# between two plugins", "next source fails", "next source says nothing", "next source can't read all"}
)

// apply lets something happen to the node. It returns false where that can't happen, or A1 to A4 exclude it.
func (x *explorer) apply(s *smallNode, what string, k int) bool {
	c, p, f := &s.conts[k], &s.pods[k], &s.files[k]
	free := slices.IndexFunc(s.files[:], func(f smallFile) bool { return f.gen == 0 })
	of := func(k int) *smallContainer { // pod k's live container
		for i := range s.conts {
			if c := &s.conts[i]; c.alive() && int(c.pod) == k {
				return c
			}
		}
		return nil
	}
	switch what {
	case "wait MinAge":
		return x.minAge < x.lag && x.advance(s, x.minAge)
	case "wait L":
		return x.advance(s, x.lag)
	case "wait StartingFor":
		return x.has(fromKubelet) && x.has(fromRuntime) && x.advance(s, x.starting)
	case "clock -1m":
		return x.step(s, -60)
	case "clock +1h":
		return x.step(s, 3600)
	case "pod # starts":
		if !x.has(fromKubelet) || p.at > 0 {
			return false
		}
		*p = smallPod{there: true, at: s.now, started: s.wall()}
	case "ADD for pod #":
		n := slices.IndexFunc(s.conts[:], func(c smallContainer) bool { return c.state == notThere })
		if n < 0 || free < 0 || x.noADD || of(k) != nil || x.has(fromKubelet) && (!p.there || p.ended) || !x.has(fromKubelet) && n != k {
			return false
		}
		s.conts[n] = smallContainer{state: inFlight, pod: uint8(k), first: uint8(free), made: s.now}
		s.reserve(free, n)
	case "another address for c#":
		if free < 0 || x.noADD || c.state != inFlight {
			return false
		}
		s.reserve(free, k)
	case "ADD of c# ends":
		s.end(c)
	case "c# listed by the runtime":
		c.listed = x.has(fromRuntime) && c.state == added
	case "c# in its pod's status":
		c.status = c.status || x.has(fromKubelet) && c.state == added && s.pods[c.pod].there
	case "c# dies":
		s.kill(c)
	case "DEL of c#":
		for a := range s.files {
			if f := &s.files[a]; f.gen != 0 && int(f.owner) == k && f.kind == 0 {
				*f = smallFile{}
			}
		}
		s.kill(c)
		c.addrs, c.cached = [2]bool{}, 0
	case "pod # deleted":
		if c := of(k); c != nil && (!x.named(s, c) || x.inPass || len(x.set.sources) == 1 || x.needsStatus(s, c)) {
			return false
		}
		p.there = false
	case "pod # finishes":
		if c := of(k); !p.there || p.ended || c == nil || !c.status || x.needsStatus(s, c) {
			return false
		}
		p.ended, p.endAt, p.endWall = true, s.now, s.wall()
	case "cache wiped":
		s.conts[0].cached, s.conts[1].cached = 0, 0
	case "reboot, clock -1h":
		s.off, s.late = s.off-3600, true
		s.steps++
		fallthrough
	case "reboot":
		if *exploreA4 && s.future() || s.steps > 2 {
			return false
		}
		s.now, s.booted = s.now+60, s.now+55
		s.kill(&s.conts[0])
		s.kill(&s.conts[1])
		s.begin()
	case "late clock set, agent restarts":
		if !s.late || x.has(fromKubelet) && (p.there || s.pods[1].there) {
			return false
		}
		s.off, s.late = s.off+3600, false
		fallthrough
	case "agent restarts":
		if *exploreA4 && (s.future() || slices.ContainsFunc(s.conts[:], func(c smallContainer) bool { return s.hides(&c) && !x.named(s, &c) })) {
			return false
		}
		if s.begin(); what != "agent restarts" {
			s.stepAt = s.now
		}
	case "file # emptied", "file # malformed", "file # unreadable":
		kind := map[string]uint8{"file # emptied": 1, "file # malformed": 2, "file # unreadable": 3}[what]
		if c := s.holder(k); f.gen == 0 || f.kind != 0 || kind < 3 && c != nil && !x.shows(s, c, k) {
			return false
		}
		if f.kind = kind; kind < 3 {
			s.gens++
			f.gen = s.gens
		}
	case "a source repeats this list":
		if !x.has(x.set.dated) {
			return false
		}
		s.held = smallList{s.now, s.wall(), s.pods, s.conts}
	case "c# between two plugins":
		if !x.has(fromProcesses) || x.mid.hidden || c.state != inFlight || s.now-c.made >= x.lag {
			return false
		}
		c.hidden, x.mid.hidden = true, true
	case "next source fails", "next source says nothing", "next source can't read all":
		kind := map[string]smallFault{"next source fails": sourceAway, "next source says nothing": sourceEmpty, "next source can't read all": sourcePartial}[what]
		if s.fault != noSmallFault || kind == sourcePartial && !x.has(fromProcesses) {
			return false
		}
		s.fault = kind
	}
	return true
}
