// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var (
	exploreDeeper = flag.Int("explore.deeper", 0, "how many steps more than usual TestExplore goes")
	exploreCPU    = flag.Duration("explore.cpu", 0, "after this CPU `TIME` TestExplore begins no deeper step with a set of sources; 0: no limit")
	exploreSets   = flag.String("explore.sets", "", "only sets of sources whose names match this `REGEXP`")
)

// A smallSet is a set of sources of a small node.
type smallSet struct {
	name     string
	steps    int
	sources  []simKind // in the order of their ranks; a record and intents speak of network1 only
	dated    simKind   // the one that may repeat an earlier list
	networks [2]string
	opts     Options
	coarse   bool // stamps of files are even seconds
	static   bool // the start of the first pod is not reported
	more     bool // a pod's status has an address of another plugin, and not all
	noEnd    bool // the end of a finished pod is not reported
	pathless bool // no entry of the cache shows whether it lives
	foreign  bool // the second container is another tool's
}

// An explorer goes through the sequences of steps of a small node, and knows which nodes it saw.
type explorer struct {
	set                   smallSet
	ids                   [2]string
	lag, minAge, starting int64
	r                     *Reconciler
	files                 []hostlocal.Reservation // with distinct identities
	events                []smallEvent
	seen, settled         map[uint64]bool
	broken                string
	states, passes        int
	beyondA4              bool

	// The pass that is under way.
	s             *smallNode
	inPass, noADD bool // noADD is the hook's assertion
	script        []smallStep
	from          int // explore from this gap on
	forks         []smallFork
	merged        bool // the rest of the pass is known
	mid           smallPass
	report        Report
}

// A smallPass is what a pass under way knows that the node does not show.
type smallPass struct {
	gap, readings           int
	hidden, refused         bool
	listed, at, began, last smallWorld // when it listed, and when it last read the clock before the sources, before a look, and at all
	said                    [7]uint64  // by the sources: of all, of each pod, container and address
}

type smallStep struct{ gap, event int }

type smallFork struct {
	s   smallNode
	mid smallPass
}

type smallEvent struct {
	name string
	when int // the index in smallEvents
	k    int
}

func (e smallEvent) String() string { return strings.Replace(e.name, "#", fmt.Sprint(e.k), 1) }

func (x *explorer) has(kind simKind) bool { return slices.Contains(x.set.sources, kind) }

func (x *explorer) foreign(k int) bool { return x.set.foreign && k == 1 }

func (x *explorer) interval() int64 { return int64(x.r.opts.Interval / time.Second) }

// index returns which of the two addresses a reservation has.
func (x *explorer) index(r *hostlocal.Reservation) int {
	if r.Network == x.set.networks[0] && r.IP == smallIPs[0] {
		return 0
	}
	return 1
}

func (x *explorer) violate(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

// atGap is called wherever something may happen during a pass.
func (x *explorer) atGap() {
	x.s.clock = x.r.clock
	for x.mid.gap++; len(x.script) > 0 && x.script[0].gap == x.mid.gap; x.script = x.script[1:] {
		e := x.events[x.script[0].event]
		x.apply(x.s, e.name, e.k)
	}
	if x.mid.gap < x.from || x.merged {
		return
	}
	if x.mid.gap > x.from && !x.isNew(x.s, &x.mid) {
		x.merged = true // the rest is known from another sequence
		return
	}
	x.forks = append(x.forks, smallFork{*x.s, x.mid})
}

// reading is the clock of the pass.
func (x *explorer) reading() reading {
	if x.mid.readings > 0 {
		x.atGap()
	}
	s := x.s
	if s.off != s.read {
		s.left = max(s.left, s.now+s.read)
	}
	s.read, s.high, s.low = s.off, max(s.high, s.off), min(s.low, s.booted+s.off)
	s.back = max(s.back, s.high-s.off)
	x.mid.last = s.smallWorld
	switch x.mid.readings++; x.mid.readings {
	case 2:
		x.mid.at, x.mid.began = x.mid.last, x.mid.last
	case 4:
		x.mid.began = x.mid.last
	}
	return s.reading()
}

// pass runs a pass on a node, in which the script happens.
func (x *explorer) pass(s *smallNode, script []smallStep, o occasion, explore bool) {
	x.s, x.script, x.from, x.forks, x.merged, x.mid, x.inPass, x.noADD = s, script, 0, x.forks[:0], !explore, smallPass{}, true, o.noADD
	if len(script) > 0 {
		x.from = script[len(script)-1].gap
	}
	x.r.clock = s.clock
	x.passes++
	var err error
	x.report, err = x.r.reconcile(context.Background(), o)
	if certain := s.held == nil || s.stepAt == 0; (err != nil) != x.mid.refused && certain {
		x.violate("the error of a pass is %v, and whether it must be refused is %t", err, x.mid.refused)
	}
	s.clock, s.fault, s.conts[0].hidden, s.conts[1].hidden, x.inPass = x.r.clock, 0, false, false, false
	certain := s.files[0].kind < broken && s.files[1].kind < broken && !s.pods[0].ended && !s.pods[1].ended && s.held == nil
	if o.noADD && certain && !x.mid.refused && s.conts == x.mid.listed.conts {
		for _, e := range x.report.Reservations {
			if a := x.index(e.Reservation); s.files[a] == x.mid.listed.files[a] && s.at(a) == nil && e.Network == network1 {
				x.violate("%v is leaked, and the hook keeps it: %s", e.IP, e.Reason)
			}
		}
	}
}

// isNew notes a node, and reports whether it was not seen before.
func (x *explorer) isNew(s *smallNode, mid *smallPass) bool {
	n, k := len(x.seen), x.key(s, mid)
	x.seen[k] = true
	return len(x.seen) > n
}

// A smallTimes has times that are compared with each other, the first of which is now.
type smallTimes [26]int64

// squeeze shortens all pauses that are longer than any that the library compares with.
func (t *smallTimes) squeeze(most int64) {
	var order [len(t)]int
	for i := range t {
		if t[i] == 0 {
			t[i] = t[0] // there is none
		}
		j := i
		for ; j > 0 && t[order[j-1]] > t[i]; j-- {
			order[j] = order[j-1]
		}
		order[j] = i
	}
	now, before, shift := t[0], t[order[0]], int64(0)
	for _, i := range order {
		shift += max(0, t[i]-before-most)
		before, t[i] = t[i], t[i]-now-shift
	}
	for i := len(t) - 1; i >= 0; i-- {
		t[i] -= t[0]
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

// key returns one number for nodes that nothing can tell apart: with containers or addresses
// exchanged, or after a longer pause.
func (x *explorer) key(s *smallNode, mid *smallPass) uint64 {
	c := &s.clock
	second := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return int64(t.Sub(simEpoch).Round(time.Second) / time.Second)
	}
	wall := smallTimes{s.now + s.off, second(c.steps.TrustedSince), second(c.steps.BootedAt), second(c.steps.Left), s.booted + s.off, s.low, s.left}
	mono := smallTimes{s.now}
	copy(wall[8:], s.wall[:])
	copy(mono[8:], s.mono[:])
	if s.held != nil {
		wall[7], mono[1] = s.held.now+s.held.off, s.held.now
	}
	var firsts [6]int64 // sights of the files, of those that were listed, and of pods or entries
	for i := range c.files {
		for a := range 2 {
			is := func(f smallFile) bool {
				g := &c.files[i].What
				return f.gen > 0 && g.Inode == x.files[f.gen].Inode() && g.Owner == smallKinds[f.kind]
			}
			if is(s.files[a]) {
				firsts[a] = int64(c.files[i].Seen / time.Second)
			}
			if mid != nil && is(mid.listed.files[a]) {
				firsts[2+a] = int64(c.files[i].Seen / time.Second)
			}
		}
	}
	for id, first := range c.finished {
		i := 0
		if id.Name == smallPods[1] || strings.Contains(id.Other, x.ids[1]) {
			i = 1
		}
		firsts[4+i] = int64(first / time.Second)
	}
	copy(mono[2:], firsts[:])
	for k := range s.conts {
		if !s.conts[k].alive() {
			mono[8+madeFirst+k], mono[8+madeLast+k] = 0, 0
		}
		if s.files[k].gen == 0 {
			wall[8+stamp+k] = 0
		}
	}
	if mid != nil {
		copy(wall[16:], append(append([]int64(nil), mid.listed.wall[stamp:]...), mid.at.now+mid.at.off, mid.began.now+mid.began.off, mid.last.now+mid.last.off,
			mid.at.booted+mid.at.off, mid.last.booted+mid.last.off))
		copy(mono[16:], append(append([]int64(nil), mid.listed.mono[madeLast:]...), mid.at.now, mid.began.now, mid.last.now))
	}
	wall.squeeze(x.starting + 200)
	mono.squeeze(x.starting + 200)
	pending := int64((s.reading().wall.Sub(c.anchor.wall) - s.reading().mono + c.anchor.mono) / time.Second)
	least := ^smallHash(0)
	for perm := range 4 {
		fc, fa := perm&1, perm>>1
		if fa == 1 && x.set.networks[0] != x.set.networks[1] || fc == 1 && x.set.foreign {
			continue
		}
		var h smallHash
		ofWorld := func(w *smallWorld, i int) {
			k, f := &w.conts[i^fc], w.files[i^fa]
			h.add(int64(k.state)<<16|int64(k.pod)<<8|int64(k.first)^int64(fa), int64(f.kind)<<8|int64(f.owner)^int64(fc))
			h.bits(k.addrs[fa], k.addrs[1^fa], k.listed, k.status, k.hidden, w.pods[i].there, w.pods[i].ended, f.gen > 0)
		}
		h.add(wall[1:8]...)
		h.add(mono[1], pending, int64(c.steps.Back), int64(c.steps.Highest.Sub(simEpoch)/time.Second)-s.off, int64(s.steps), int64(s.fault), s.high-s.off, s.back)
		h.bits(s.late, mid != nil)
		for i := range 2 {
			k, f := i^fc, i^fa
			ofWorld(&s.smallWorld, i)
			h.bits(s.hides(k), s.mono[begunAt+i] > 0 && s.mono[begunAt+i] <= s.stepAt, firsts[4+i] > 0, firsts[4+k] > 0, firsts[f] > 0, s.wall[cachedAt+k] > 0)
			h.add(wall[8+begunAt+i], wall[8+endedAt+i], wall[8+cachedAt+k], wall[8+stamp+f], mono[2+f], mono[6+i], mono[6+k], mono[8+endedAt+i], mono[8+madeFirst+k], mono[8+madeLast+k])
			if s.held != nil {
				ofWorld(s.held, i)
			}
			if mid != nil {
				ofWorld(&mid.listed, i)
				h.bits(mid.listed.files[f].gen == s.files[f].gen, firsts[2+f] > 0)
				h.add(wall[16+f], mono[16+k], mono[4+f], int64(mid.said[1+i]), int64(mid.said[3+k]), int64(mid.said[5+f]))
			}
		}
		if mid != nil {
			h.add(wall[18:]...)
			h.add(mono[18:]...)
			h.add(int64(mid.gap), int64(mid.readings), int64(mid.said[0]))
			h.bits(mid.hidden, x.noADD, mid.refused)
		}
		least = min(least, h)
	}
	return uint64(least)
}

// A smallVisit is a node, or a pass under way on that of its parent.
type smallVisit struct {
	s      smallNode
	parent *smallVisit
	what   string
	script []smallStep
	hook   bool
}

func (v *smallVisit) String() string {
	if v.parent == nil {
		return v.what
	}
	return v.parent.String() + "; " + v.what
}

// explore visits all nodes within some steps, those with fewer first. It returns the way to one that breaks a rule.
func (x *explorer) explore(steps int) *smallVisit {
	type level struct{ passes, nodes []*smallVisit }
	levels, begun := make([]level, steps+2), cpuTime()
	arrive := func(depth int, v *smallVisit) {
		if v.s.tidy(); x.isNew(&v.s, nil) {
			levels[depth].nodes = append(levels[depth].nodes, v)
		}
	}
	run := func(depth int, v *smallVisit) *smallVisit {
		s := v.parent.s
		if v.hook {
			s.begin()
		}
		x.pass(&s, v.script, occasion{hook: v.hook, noADD: v.hook, inLoop: !v.hook}, true)
		if x.broken != "" {
			return v
		}
		if !x.merged {
			arrive(depth, &smallVisit{s: s, parent: v.parent, what: v.what})
		}
		for i := 0; i < len(x.forks) && depth < steps; i++ {
			for n, e := range x.events {
				fork := x.forks[i]
				x.mid, x.inPass = fork.mid, true
				if x.apply(&fork.s, e.name, e.k); e.when != 1 && fork.s.smallWorld != x.forks[i].s.smallWorld && x.isNew(&fork.s, &x.mid) {
					levels[depth+1].passes = append(levels[depth+1].passes, &smallVisit{parent: v.parent, hook: v.hook,
						what: fmt.Sprintf("%s [%d: %s]", v.what, fork.mid.gap, e), script: append(slices.Clip(v.script), smallStep{fork.mid.gap, n})})
				}
			}
		}
		x.inPass, x.noADD = false, false
		return nil
	}
	for _, v := range x.starts() {
		arrive(0, v)
	}
	for depth := 0; depth <= steps && (*exploreCPU == 0 || cpuTime()-begun < *exploreCPU); depth++ {
		for _, v := range levels[depth].passes {
			if bad := run(depth, v); bad != nil {
				return bad
			}
		}
		for _, v := range levels[depth].nodes {
			if x.settle(v.s, false); x.broken == "" {
				x.settle(v.s, true)
			}
			if x.broken != "" {
				return v
			}
			if depth == steps {
				continue
			}
			for _, e := range x.events {
				if s := v.s; e.when != 2 {
					if x.apply(&s, e.name, e.k); s.smallWorld != v.s.smallWorld || e.name == "agent restarts" {
						arrive(depth+1, &smallVisit{s: s, parent: v, what: e.String()})
					}
				}
			}
			for _, hook := range []bool{false, true} {
				next := &smallVisit{parent: v, what: map[bool]string{false: "PASS", true: "HOOK"}[hook], hook: hook}
				quiet := v.s.conts[0].state != inFlight && v.s.conts[1].state != inFlight
				if hook && !(x.has(fromRecord) && quiet && x.mayRestart(&v.s.smallWorld, false)) {
					continue
				}
				if bad := run(depth+1, next); bad != nil {
					return bad
				}
			}
		}
		x.states += len(levels[depth].passes) + len(levels[depth].nodes)
		levels[depth] = level{}
	}
	return nil
}

// tidy lets the place of a container that left nothing be used again.
func (s *smallNode) tidy() {
	for k := range s.conts {
		owns := slices.ContainsFunc(s.files[:], func(f smallFile) bool { return f.gen > 0 && int(f.owner) == k })
		if c := &s.conts[k]; c.state == dead && !owns && s.wall[cachedAt+k] == 0 && !c.status && s.held == nil {
			*c = smallContainer{}
		}
	}
}
