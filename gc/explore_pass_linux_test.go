// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A smallPass is what a pass knows that the node does not show.
type smallPass struct {
	gap, readings           int
	hidden, refused         bool
	listed, at, began, last smallWorld // when it listed, and when it read the clock before the sources, before the last look, and last
	said                    [7]uint64  // by the sources: of all, of pods, containers and addresses
}

type (
	smallStep struct{ gap, event int }
	smallFork struct {
		s   smallNode
		mid smallPass
	}
	smallEvent struct {
		name    string
		when, k int // when is the index in smallEvents
	}
)

func (x *explorer) violate(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

// atGap is called wherever something may happen during a pass.
func (x *explorer) atGap() {
	x.s.clock = x.r.clock
	here := len(x.script) == 0 // else the part up to the last step is known
	for x.mid.gap++; len(x.script) > 0 && x.script[0].gap == x.mid.gap; x.script = x.script[1:] {
		e := x.events[x.script[0].event]
		x.apply(x.s, e.name, e.k)
	}
	if x.explore = x.explore && (!here || x.isNew(x.s, &x.mid)); x.explore && len(x.script) == 0 {
		x.forks = append(x.forks, smallFork{*x.s, x.mid})
	}
}

// reading is the clock of the pass.
func (x *explorer) reading() reading {
	if x.mid.readings > 0 {
		x.atGap()
	}
	s := x.s
	if s.off != s.read {
		s.due = max(s.due, s.now+s.read)
	}
	s.read, s.high, s.low = s.off, max(s.high, s.off), min(s.low, s.booted+s.off)
	s.back, x.mid.last = max(s.back, s.high-s.off), s.smallWorld
	if x.mid.readings++; x.mid.readings%2 == 0 {
		x.mid.began = s.smallWorld
	}
	if x.mid.readings <= 2 {
		x.mid.at = s.smallWorld
	}
	return s.reading()
}

// pass runs a pass on a node, in which the script happens.
func (x *explorer) pass(s *smallNode, script []smallStep, o occasion, explore bool) {
	x.s, x.script, x.explore, x.forks, x.mid, x.inPass, x.noADD, x.r.clock = s, script, explore, nil, smallPass{}, true, o.noADD, s.clock
	var err error
	x.passes++
	if x.report, err = x.r.reconcile(context.Background(), o); (err != nil) != x.mid.refused && (s.held == nil || s.stepAt == 0) {
		x.violate("the error of a pass is %v, and whether it must be refused is %t", err, x.mid.refused)
	}
	s.clock, s.fault, s.conts[0].hidden, s.conts[1].hidden, x.inPass = x.r.clock, 0, false, false, false
	certain := s.files[0].kind < broken && s.files[1].kind < broken && !s.pods[0].ended && !s.pods[1].ended && s.held == nil && !x.mid.refused
	for _, e := range x.report.Reservations {
		a := slices.Index(smallIPs[:], e.IP)
		same := s.files[a].gen > 0 && s.files[a] == x.mid.listed.files[a] && s.conts == x.mid.listed.conts
		if o.noADD && certain && x.recorded(a) && same && s.at(a) < 0 {
			x.violate("%v is leaked, and the hook keeps it: %s", e.IP, e.Reason)
		}
	}
}

type smallHash uint64

func (h *smallHash) add(values ...int64) {
	for _, v := range values {
		*h = (*h ^ smallHash(v)) * 0x9E3779B97F4A7C15
		*h ^= *h >> 29
	}
}

func (h *smallHash) bits(all ...bool) {
	v := int64(1)
	for _, on := range all {
		if v <<= 1; on {
			v++
		}
	}
	h.add(v)
}

// isNew notes a node, and reports whether it was not seen before.
func (x *explorer) isNew(s *smallNode, mid *smallPass) bool {
	n, k := len(x.seen), x.key(s, mid)
	x.seen[k] = true
	return len(x.seen) > n
}

// key returns one number for nodes that nothing can tell apart, since containers or addresses are exchanged, or later.
func (x *explorer) key(s *smallNode, mid *smallPass) smallHash {
	c, now, wall, least := &s.clock, s.now, s.now+s.off, ^smallHash(0)
	age := func(now, at int64) int64 { // zero if it is unknown
		if at == 0 {
			return 0
		}
		return now - at + 1
	}
	since := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return age(wall, int64(t.Sub(simEpoch).Round(time.Second)/time.Second))
	}
	var finished [2]int64
	for id, first := range c.finished {
		if id.Name == smallPods[1] || strings.Contains(id.Other, x.ids[1]) {
			finished[1] = age(now, int64(first/time.Second))
		} else {
			finished[0] = age(now, int64(first/time.Second))
		}
	}
	var all smallHash
	all.add(since(c.steps.TrustedSince), since(c.steps.BootedAt), since(c.steps.Left), int64(c.steps.Back), now-s.booted, age(wall, s.low),
		age(wall, s.due), int64(s.reading().wall.Sub(c.anchor.wall)-s.reading().mono+c.anchor.mono),
		int64(c.steps.Highest.Sub(simEpoch))-s.off*1e9, int64(s.steps), int64(s.fault), s.high-s.off, s.back)
	if all.bits(s.late, mid != nil, s.held != nil); s.held != nil {
		all.add(now-s.held.now, s.off-s.held.off)
	}
	if mid != nil {
		all.add(int64(mid.gap), int64(mid.readings), int64(mid.said[0]))
		all.bits(mid.hidden, mid.refused, x.noADD)
		for _, w := range []*smallWorld{&mid.at, &mid.began, &mid.last} {
			all.add(now-w.now, s.off-w.off, now-w.booted)
		}
	}
	for perm := range 4 {
		h, fc, fa := all, perm&1, perm>>1
		if fa == 1 && x.set.networks[0] != x.set.networks[1] || fc == 1 && (x.is("foreign") || x.is("invisible")) {
			continue
		}
		world := func(w *smallWorld, i int) {
			c, f, k := &w.conts[i^fc], w.files[i^fa], i^fc
			h.add(int64(c.state)<<16|int64(c.pod)<<8|int64(c.first)^int64(fa), age(wall, w.wall[contCached+k]))
			h.bits(c.addrs[fa], c.addrs[1^fa], c.listed, c.status, c.hidden, w.pods[i].there, w.pods[i].ended, f.gen > 0)
			if c.alive() {
				h.add(age(now, w.mono[contFirst+k]), age(now, w.mono[contLast+k]))
			}
			if w.pods[i].there || w.pods[i].ended {
				h.add(age(now, w.mono[podEnd+i]), age(wall, w.wall[podStart+i]), age(wall, w.wall[podEnd+i]))
			}
			if f.gen > 0 {
				h.add(int64(f.kind)<<8|int64(f.owner)^int64(fc), age(wall, w.wall[fileStamp+(i^fa)]))
				for _, sight := range s.clock.files {
					if g := &sight.What; g.Inode == x.files[f.gen].Inode() && g.Owner == smallKinds[f.kind] {
						h.add(now - int64(sight.Seen/time.Second))
					}
				}
			}
		}
		for i := range 2 {
			world(&s.smallWorld, i)
			h.add(finished[i], finished[i^fc])
			h.bits(s.hides(i^fc), s.mono[podStart+i] > 0 && s.mono[podStart+i] <= s.stepAt, s.mono[contFirst+(i^fc)] <= s.missed)
			if s.held != nil {
				world(s.held, i)
			}
			if mid != nil {
				world(&mid.listed, i)
				h.bits(mid.listed.files[i^fa] == s.files[i^fa])
				h.add(int64(mid.said[1+i]), int64(mid.said[3+(i^fc)]), int64(mid.said[5+(i^fa)]))
			}
		}
		least = min(least, h)
	}
	return least
}
