// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var (
	exploreDeeper = flag.Int("explore.deeper", 0, "how many steps more than usual TestExplore takes; with -short one less is usual")
	exploreCPU    = flag.Duration("explore.cpu", 0, "the most CPU `TIME` for each set of sources; 0: no limit")
	exploreSets   = flag.String("explore.sets", "", "only sets of sources whose names match this `REGEXP`")
	exploreA4     = flag.Bool("explore.a4", true, "respect A4; without, a loss must be found")
)

// A smallSet is a set of sources of a small node.
type smallSet struct {
	name     string
	steps    int
	sources  []simKind // in the order of their ranks
	dated    simKind   // the source that may repeat an earlier list
	networks [2]string
	ips      [2]netip.Addr
	opts     Options
	coarse   bool // stamps of files are even seconds
	noEnd    bool // no end of a finished pod is reported
	pathless bool // no entry of the cache shows whether it lives
}

const noKind simKind = -1

func (x *explorer) has(kinds ...simKind) bool {
	return slices.ContainsFunc(x.set.sources, func(k simKind) bool { return slices.Contains(kinds, k) })
}

// An explorer goes through every sequence of steps of a small node, and remembers which nodes it saw.
type explorer struct {
	set                   smallSet
	lag, minAge, starting int64
	r                     *Reconciler
	files                 []hostlocal.Reservation // with distinct identities
	seen, settled         map[uint64]bool
	broken                string
	passes                int
	report                Report

	// The pass that is under way.
	s                    *smallNode
	inPass               bool
	noADD                bool // the hook's assertion
	script               []smallStep
	from                 int // explore from this gap on
	forks                []smallFork
	merged               bool // the rest of the pass is known
	mid                  smallPass
	states, lives, depth int
	until                time.Duration
	all                  []smallEvent
}

// A smallPass is what a pass under way knows that the node does not show.
type smallPass struct {
	gap, readings          int
	hidden, noADD, refused bool
	listed                 [2]smallFile
	said                   [7]uint64    // by the sources: of all, of each pod, container and address
	at                     [3]smallTime // the second reading, the last one before the sources were asked, and the last one
}

type smallTime struct{ mono, wall, boot int64 }

type smallStep struct {
	gap   int
	event int
}

type smallFork struct {
	s   smallNode
	mid smallPass
}

// atGap is called wherever something may happen during a pass.
func (x *explorer) atGap() {
	x.s.clock = x.r.clock
	for x.mid.gap++; len(x.script) > 0 && x.script[0].gap == x.mid.gap; x.script = x.script[1:] {
		if e := x.all[x.script[0].event]; !x.apply(x.s, e.name, e.k) {
			x.violate("%v is not possible again", e)
		}
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

// reading is the clock that the pass reads.
func (x *explorer) reading() reading {
	if x.mid.readings > 0 {
		x.atGap()
	}
	s := x.s
	s.high = max(s.high, s.off)
	s.back = max(s.back, s.high-s.off)
	at := smallTime{s.now, s.wall(), s.booted + s.off}
	switch x.mid.readings++; x.mid.readings {
	case 2:
		x.mid.at = [3]smallTime{at, at, at}
	case 4:
		x.mid.at[1] = at
	}
	x.mid.at[2] = at
	return s.reading()
}

func (x *explorer) violate(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

// pass runs a pass on a node, in which the script happens.
func (x *explorer) pass(s *smallNode, script []smallStep, o occasion, forks bool) {
	x.s, x.script, x.from, x.forks, x.merged, x.mid, x.inPass, x.noADD = s, script, 0, x.forks[:0], !forks, smallPass{noADD: o.noADD}, true, o.noADD
	if len(script) > 0 {
		x.from = script[len(script)-1].gap
	}
	x.r.clock = s.clock
	x.passes++
	var err error
	x.report, err = x.r.reconcile(context.Background(), o)
	if (err != nil) != x.mid.refused && (s.held.at == 0 || s.stepAt == 0 || x.set.dated == fromKubelet) {
		x.violate("the error of a pass is %v, and whether it must be refused is %t", err, x.mid.refused)
	}
	s.clock, s.fault, s.conts[0].hidden, s.conts[1].hidden, x.inPass, x.noADD = x.r.clock, noSmallFault, false, false, false, false
}

// isNew notes a node, and reports whether it was not seen before.
func (x *explorer) isNew(s *smallNode, mid *smallPass) bool {
	k := x.key(s, mid)
	known := x.seen[k]
	x.seen[k] = true
	return !known
}

// A smallTimes has times that are compared with each other.
type smallTimes [24]int64

// squeeze shortens all pauses between two times that are longer than any that the library
// compares with, and makes the times relative to the first one.
func (t *smallTimes) squeeze(most int64) {
	var order [len(t)]int
	for i := range t {
		j := i
		for ; j > 0 && t[order[j-1]] > t[i]; j-- {
			order[j] = order[j-1]
		}
		order[j] = i
	}
	before, shift := t[order[0]], int64(0)
	for _, i := range order {
		shift += max(0, t[i]-before-most)
		before, t[i] = t[i], t[i]-shift
	}
	now := t[0]
	for i := range t {
		t[i] -= now
	}
}

// key returns the same number for nodes that nothing can tell apart: with containers or addresses
// exchanged, or a longer pause where any pause as long is the same.
func (x *explorer) key(s *smallNode, mid *smallPass) uint64 {
	var wall, mono smallTimes
	c := &s.clock
	for i := range wall {
		wall[i], mono[i] = s.wall(), s.now
	}
	since := func(t time.Time) int64 {
		if t.IsZero() {
			return s.wall() + 1e6
		}
		return int64(t.Sub(simEpoch).Round(time.Second) / time.Second)
	}
	seen := func(a int, f smallFile) int64 {
		for i := range c.files {
			if g := &c.files[i].What; f.gen != 0 && g.Inode == x.files[f.gen].Inode() && g.Owner == smallKinds[f.kind] {
				return int64(c.files[i].Seen / time.Second)
			}
		}
		return s.now + 1e6
	}
	wall[1], wall[2], wall[3], wall[4], wall[5] = since(c.steps.TrustedSince), since(c.steps.BootedAt), since(c.steps.Left), s.booted+s.off, s.held.wall
	mono[1] = s.held.at
	pending := int64((s.reading().wall.Sub(c.anchor.wall) - s.reading().mono + c.anchor.mono) / time.Second)
	for i := range 2 {
		p, k, f := &s.pods[i], &s.conts[i], &s.files[i]
		if p.there {
			wall[6+i] = p.started
		}
		if p.ended {
			wall[8+i], mono[2+i] = p.endWall, p.endAt
			pod := startingPod(fmt.Sprint("web", i), time.Time{})
			if first, ok := c.finished[podIDOf(&pod)]; ok {
				mono[4+i] = int64(first / time.Second)
			}
		}
		if k.cached > 0 {
			wall[10+i] = k.cached
			if p := x.entry(i, x.set.networks[0], k.cached); x.set.pathless && c.finished[podIDOf(&p)] > 0 {
				mono[14+i] = int64(c.finished[podIDOf(&p)] / time.Second)
			}
		}
		if k.alive() {
			mono[6+i], mono[8+i] = k.made, k.last
			if mid != nil {
				mono[10+i] = k.atList
			}
		}
		if f.gen != 0 {
			wall[12+i], mono[12+i] = f.stamp, seen(i, *f)
		}
		if mid != nil && mid.listed[i].gen != 0 {
			wall[14+i], mono[16+i] = mid.listed[i].stamp, seen(i, mid.listed[i])
		}
	}
	for i := 0; mid != nil && i < min(3, mid.readings); i++ {
		wall[16+i], wall[19+i], mono[18+i] = mid.at[i].wall, mid.at[i].boot, mid.at[i].mono
	}
	wall.squeeze(x.starting + 200)
	mono.squeeze(x.starting + 200)
	least := ^uint64(0)
	for perm := range 4 {
		fc, fa := perm&1, perm>>1
		if fa == 1 && x.set.networks[0] != x.set.networks[1] {
			break
		}
		h := uint64(0)
		add := func(values ...int64) {
			for _, v := range values {
				h = (h ^ uint64(v)) * 0x9E3779B97F4A7C15
				h ^= h >> 29
			}
		}
		bits := func(all ...bool) {
			v := int64(0)
			for _, on := range all {
				if v <<= 1; on {
					v++
				}
			}
			add(v)
		}
		cont := func(k *smallContainer) {
			add(int64(k.state), int64(k.pod), int64(k.first)^int64(fa))
			bits(k.addrs[fa], k.addrs[1^fa], k.listed, k.status, k.hidden, k.cached > 0, s.hides(k))
		}
		add(wall[1:10]...)
		add(mono[1:6]...)
		add(pending, int64(c.steps.Back), int64(c.steps.Highest.Sub(simEpoch)/time.Second)-s.off, int64(s.steps), int64(s.fault), s.high-s.off, s.back)
		bits(s.late, s.held.at > 0, mid != nil)
		for i := range 2 {
			p, k, f := &s.pods[i], i^fc, i^fa
			bits(p.there, p.ended, p.at > 0, p.at > 0 && p.at <= s.stepAt)
			cont(&s.conts[k])
			add(wall[10+k], mono[6+k], mono[8+k], mono[10+k], mono[14+k], wall[12+f], mono[12+f])
			add(int64(s.files[f].kind), int64(s.files[f].owner)^int64(fc))
			bits(s.files[f].gen > 0)
			if s.held.at > 0 {
				bits(s.held.pods[i].there, s.held.pods[i].ended)
				cont(&s.held.conts[k])
			}
			if mid != nil {
				l := mid.listed[f]
				bits(l == s.files[f], l.gen > 0)
				add(wall[14+f], mono[16+f], int64(l.kind), int64(l.owner)^int64(fc), int64(mid.said[1+i]), int64(mid.said[3+k]), int64(mid.said[5+f]))
			}
		}
		if mid != nil {
			add(wall[16:]...)
			add(mono[18:21]...)
			add(int64(mid.gap), int64(mid.readings), int64(mid.said[0]))
			bits(mid.hidden, mid.noADD, mid.refused)
		}
		least = min(least, h)
	}
	return least
}

// A smallVisit is a node, or a pass that is under way on that of its parent.
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

// explore visits all nodes within some steps, those with fewer steps first.
func (x *explorer) explore(steps int) (trace string) {
	type level struct{ mids, idle []*smallVisit }
	levels := make([]level, steps+1)
	arrive := func(depth int, v *smallVisit) {
		v.s.tidy()
		if depth <= steps && x.isNew(&v.s, nil) {
			levels[depth].idle = append(levels[depth].idle, v)
		}
	}
	run := func(depth int, v *smallVisit) bool { // v.parent's pass, with v.script
		s := v.parent.s
		if v.hook {
			s.begin()
		}
		x.pass(&s, v.script, occasion{hook: v.hook, noADD: v.hook, inLoop: !v.hook}, true)
		if x.broken != "" {
			return false
		}
		forks, mergedNow := slices.Clone(x.forks), x.merged
		if !mergedNow {
			arrive(depth, &smallVisit{s: s, parent: v.parent, what: v.what})
		}
		for i := 0; i < len(forks) && depth < steps; i++ {
			for e, event := range x.all {
				fork := forks[i]
				x.inPass, x.mid, x.noADD = true, fork.mid, v.hook
				if event.when == betweenPasses || !x.apply(&fork.s, event.name, event.k) || fork.s.smallWorld == forks[i].s.smallWorld || !x.isNew(&fork.s, &x.mid) {
					continue
				}
				what := fmt.Sprintf("%s [at %d: %s]", v.what, fork.mid.gap, event)
				levels[depth+1].mids = append(levels[depth+1].mids, &smallVisit{parent: v.parent, what: what,
					script: append(slices.Clip(v.script), smallStep{fork.mid.gap, e}), hook: v.hook})
			}
		}
		x.inPass, x.noADD = false, false
		return true
	}
	for _, v := range x.starts() {
		arrive(0, v)
	}
	for depth := range steps + 1 {
		if *exploreCPU > 0 && cpuTime() > x.until {
			return ""
		}
		for _, v := range levels[depth].mids {
			if !run(depth, v) {
				return v.String()
			}
		}
		for _, v := range levels[depth].idle {
			for _, stuck := range []bool{false, true} {
				if x.settle(v.s, stuck); x.broken != "" {
					return v.String()
				}
			}
			if depth == steps {
				continue
			}
			for _, event := range x.all {
				if s := v.s; event.when != duringPass && x.apply(&s, event.name, event.k) && (s.smallWorld != v.s.smallWorld || event.name == "agent restarts") {
					arrive(depth+1, &smallVisit{s: s, parent: v, what: event.String()})
				}
			}
			if !run(depth+1, &smallVisit{parent: v, what: "PASS"}) {
				return v.String() + "; PASS"
			}
			quiet := v.s.conts[0].state != inFlight && v.s.conts[1].state != inFlight
			if s := v.s; x.has(fromRecord) && quiet && x.apply(&s, "agent restarts", 0) && !run(depth+1, &smallVisit{parent: v, what: "HOOK", hook: true}) {
				return v.String() + "; HOOK"
			}
		}
		x.states += len(levels[depth].mids) + len(levels[depth].idle)
		x.depth = depth
		levels[depth] = level{}
	}
	return ""
}

// tidy lets a slot of a container that left nothing behind be used again.
func (s *smallNode) tidy() {
	for k := range s.conts {
		owns := slices.ContainsFunc(s.files[:], func(f smallFile) bool { return f.gen != 0 && int(f.owner) == k })
		if c := &s.conts[k]; c.state == dead && !owns && c.cached == 0 && !c.status && s.held.at == 0 {
			*c = smallContainer{}
		}
	}
}

// settle ends all faults, and fails unless then each leak is released in time, or a rule keeps it.
func (x *explorer) settle(s smallNode, stuck bool) {
	s.held = smallList{}
	for k := range s.conts {
		c := &s.conts[k]
		s.end(c)
		c.listed, c.status = c.state == added && x.has(fromRuntime), c.status || c.state == added && s.pods[c.pod].there
		if s.files[k].kind == 3 {
			s.files[k].kind = 0
		}
	}
	for i := range s.pods {
		s.pods[i].there = s.pods[i].there && (stuck || slices.ContainsFunc(s.conts[:], func(c smallContainer) bool { return c.alive() && int(c.pod) == i }))
	}
	if k := x.key(&s, nil); x.settled[k] {
		return
	} else {
		x.settled[k] = true
	}
	x.lives++
	const interval = 300
	for first, until := s.now, s.now+x.starting+x.lag+3*interval; x.broken == ""; {
		leaks := 0
		for a, f := range s.files {
			if f.gen != 0 && s.holder(a) == nil {
				leaks++
			}
		}
		if leaks == 0 {
			return
		}
		x.pass(&s, nil, occasion{inLoop: true}, false)
		over := s.now > until || x.report.NextCheck.IsZero() && s.now > first+x.lag
		for _, e := range x.report.Reservations {
			a := 0
			if e.Network != x.set.networks[0] || e.IP != x.set.ips[0] {
				a = 1
			}
			if why := e.Reason; e.Verdict != Released && s.holder(a) == nil && over && !x.mayKeep(&s, a, why) {
				x.violate("%v is leaked, and kept for %d s after the last fault: %s", e.IP, s.now-first, why)
			}
		}
		if over {
			return
		}
		pause := int64(interval)
		if next := x.report.NextCheck; !next.IsZero() {
			pause = min(interval, max(15, int64(next.Sub(smallWall(s.wall()))/time.Second)+1))
		}
		x.advance(&s, pause)
	}
}

// mayKeep reports whether a rule keeps a leak for ever on this very node.
func (x *explorer) mayKeep(s *smallNode, a int, why Reason) bool {
	f := s.files[a]
	beforeBoot := f.stamp < s.booted+s.off-1
	entry := s.conts[f.owner].cached > 0 && f.kind == 0
	oldest := s.conts[0].cached
	if k := s.conts[1].cached; k > 0 && (oldest == 0 || k < oldest) {
		oldest = k
	}
	passes, doubted := false, false
	for i, g := range s.files {
		if x.set.networks[i] == x.set.networks[a] && g.gen > 0 {
			has := g.kind == 0 && s.conts[g.owner].cached > 0
			passes, doubted = passes || has, doubted || !has && s.holder(i) != nil
		}
	}
	passes = passes && !doubted && x.has(fromCache)
	switch why {
	case OwnerMalformed:
		return f.kind == 2
	case NetworkNotNamed:
		return x.set.networks[a] != network1 && x.set.networks[a] != "second"
	case NoSourceForNetwork:
		return x.set.sources[0] == fromProcesses && !x.has(fromKubelet, fromRuntime, fromRecord) && !passes
	case NotRecorded:
		return x.has(fromCache) && !x.has(fromKubelet, fromRuntime, fromRecord) && passes && !entry && (s.stepAt > 0 || f.stamp > s.wall() || f.stamp <= oldest && !beforeBoot)
	case EntryUnproven:
		return x.set.pathless && !x.has(fromRuntime) && s.conts[f.owner].cached > 0
	case StartingNoEnd:
		if x.has(fromRuntime, fromRecord) || beforeBoot && s.stepAt < s.booted {
			return false
		}
		claim := false
		for i, p := range s.pods {
			starts := p.there && !p.ended
			for _, c := range s.conts {
				starts = starts && !(c.status && int(c.pod) == i)
			}
			claim = claim || starts && f.stamp >= p.started-s.back-3
		}
		for i, g := range s.files { // hazard 84
			claim = claim || g.gen > 0 && (g.kind == 1 || g.kind == 2) && s.holder(i) != nil
		}
		return claim && !(passes && (entry || f.stamp > oldest))
	case OtherContainer, ClaimedInOtherNetwork, AddressClaimed, OwnerInConflict, SiblingInUse:
		return x.set.ips[0] == x.set.ips[1] && s.holder(1-a) != nil
	}
	return false
}

// starts returns nodes to begin with: with a live container, with a leak, and after a boot.
func (x *explorer) starts() (all []*smallVisit) {
	s := smallNode{}
	s.now = 2_592_000
	s.begin()
	do := func(s *smallNode, events ...string) {
		for _, e := range events {
			x.apply(s, e, 1)
		}
		s.tidy()
	}
	kube := x.has(fromKubelet)
	if kube {
		do(&s, "pod # starts")
	}
	x.apply(&s, "ADD for pod #", map[bool]int{true: 1}[kube])
	for _, e := range []string{"ADD of c# ends", "c# listed by the runtime", "c# in its pod's status", "wait L"} {
		x.apply(&s, e, 0)
	}
	add := func(name string, s smallNode) {
		s.clock.observe(s.reading())
		if kube {
			x.apply(&s, "pod # starts", 0)
		}
		all = append(all, &smallVisit{s: s, what: name})
	}
	add("a live container", s)
	booted := s
	x.apply(&booted, "reboot", 0)
	x.apply(&s, "c# dies", 0)
	add("a leak", s)
	add("a leak after a boot", booted)
	return all
}

type smallEvent struct {
	name string
	k    int
	when smallWhen
}

func (e smallEvent) String() string { return strings.Replace(e.name, "#", fmt.Sprint(e.k), 1) }

type smallWhen uint8

const (
	anyTime smallWhen = iota
	betweenPasses
	duringPass
)

func (set *smallSet) dirs() []string {
	return slices.Compact(slices.Sorted(slices.Values(set.networks[:])))
}

func newExplorer(t *testing.T, set smallSet) *explorer {
	x := &explorer{set: set, seen: make(map[uint64]bool), settled: make(map[uint64]bool)}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, network1), 0o755))
	for i := range 40 {
		must(t, os.WriteFile(filepath.Join(dir, network1, fmt.Sprintf("10.0.0.%d", i)), nil, 0o600))
	}
	list, err := hostlocal.New(dir).List(t.Context())
	must(t, err)
	x.files = list.Reservations
	x.set.opts.SourceTimeout, x.set.opts.Interval = time.Hour, 5*time.Minute
	x.r, err = New(hostlocal.New(dir), slices.DeleteFunc(set.dirs(), func(n string) bool { return n == "third" }), x, x.set.opts)
	must(t, err)
	x.r.disk, x.r.source, x.r.now = x, x, x.reading
	x.r.sleep = func(context.Context, time.Duration) bool { x.advance(x.s, 1); return true }
	s := func(d time.Duration) int64 { return int64(d / time.Second) }
	x.lag, x.minAge, x.starting = s(x.r.opts.lag()), s(x.r.opts.MinAge), s(x.r.opts.StartingFor)+1
	for i, names := range [][]string{smallEvents, smallOutside, smallInside} {
		for _, name := range names {
			x.all = append(x.all, smallEvent{name, 0, smallWhen(i)})
			if strings.Contains(name, "#") {
				x.all = append(x.all, smallEvent{name, 1, smallWhen(i)})
			}
		}
	}
	return x
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func smallSets() []smallSet {
	one, two := [2]string{network1, network1}, [2]string{network1, "second"}
	ips := [2]netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}
	short := Options{MinAge: 30 * time.Second}
	return []smallSet{
		{name: "kubelet", steps: 4, sources: []simKind{fromKubelet}, dated: fromKubelet, networks: one, ips: ips},
		{name: "kubelet and runtime", steps: 4, sources: []simKind{fromRuntime, fromKubelet}, dated: fromRuntime, networks: one, ips: ips},
		{name: "processes and cache", steps: 4, sources: []simKind{fromProcesses, fromCache}, dated: noKind, networks: one, ips: ips, opts: short},
		{name: "record", steps: 4, sources: []simKind{fromIntents, fromRecord}, dated: fromRecord, networks: two, ips: ips},
		{name: "all", steps: 3, sources: []simKind{fromProcesses, fromCache, fromRuntime, fromKubelet}, dated: fromRuntime, networks: one, ips: ips, opts: short},
	}
}

// TestExplore goes through every sequence of so many steps of a small node, with each set of sources.
func TestExplore(t *testing.T) {
	for _, set := range smallSets() {
		if !regexp.MustCompile(*exploreSets).MatchString(set.name) {
			continue
		}
		x, begun := newExplorer(t, set), cpuTime()
		x.until = begun + *exploreCPU
		steps := set.steps + *exploreDeeper
		if testing.Short() {
			steps--
		}
		trace := x.explore(steps)
		took := cpuTime() - begun
		fmt.Printf("Explore %s: all of %d steps, %d states, %d passes, %d settled, %v CPU\n", set.name, x.depth, x.states, x.passes, x.lives, took.Round(10*time.Millisecond))
		if x.broken != "" {
			t.Errorf("%s: %s\n%s", set.name, x.broken, trace)
		}
	}
}
