// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var (
	exploreDeeper = flag.Int("explore.deeper", 0, "how many steps more than usual TestExplore goes")
	exploreSets   = flag.String("explore.sets", "", "only nodes whose names match this `REGEXP`")
)

// A smallSet is a kind of small node. Its name says what is unusual: coarse, stamps of files are even seconds;
// more, a pod has addresses of another plugin; static, one pod's start and all ends are not reported; pathless, no
// entry of the cache shows whether it lives; foreign, the second container is another tool's.
type smallSet struct {
	name     string
	steps    int
	sources  []simKind // in the order of their ranks; a record and intents speak of network1 only
	dated    simKind   // the one that may repeat an earlier list
	networks [2]string // of the two addresses
	minAge   time.Duration
}

func smallSets() []smallSet {
	one, two, third, none := [2]string{network1, network1}, [2]string{network1, "second"}, [2]string{network1, "third"}, simKind("")
	return []smallSet{
		{"kubelet", 4, []simKind{fromKubelet}, fromKubelet, one, 0},
		{"kubelet, coarse, more", 3, []simKind{fromKubelet}, none, third, 0},
		{"kubelet, static", 3, []simKind{fromKubelet}, none, one, 0},
		{"runtime", 4, []simKind{fromRuntime, fromKubelet}, fromRuntime, one, 0},
		{"runtime, foreign", 3, []simKind{fromRuntime, fromKubelet}, none, one, 0},
		{"cache", 4, []simKind{fromProcesses, fromCache}, none, one, 30 * time.Second},
		{"cache, foreign", 3, []simKind{fromProcesses, fromCache, fromKubelet}, fromProcesses, two, 30 * time.Second},
		{"cache, pathless", 3, []simKind{fromProcesses, fromCache, fromKubelet}, none, one, 30 * time.Second},
		{"record", 4, []simKind{fromIntents, fromRecord}, fromRecord, one, 0},
		{"record, kubelet", 3, []simKind{fromIntents, fromRecord, fromKubelet}, fromRecord, two, 0},
		{"record, foreign", 3, []simKind{fromRecord, fromKubelet}, none, one, 0},
		{"all", 3, []simKind{fromProcesses, fromCache, fromRuntime, fromKubelet}, fromRuntime, one, 30 * time.Second},
	}
}

// An explorer goes through the sequences of steps of a small node, and knows which nodes it saw.
type explorer struct {
	set                   smallSet
	ids                   [2]string
	lag, minAge, starting int64
	r                     *Reconciler
	files                 []hostlocal.Reservation // with distinct identities
	events                []smallEvent
	seen, settled         map[smallHash]bool
	levels                [][2][]*smallVisit // passes that are under way, and nodes between passes
	broken                string
	states, passes        int
	beyondA4              bool

	// Of the pass that is under way:
	s             *smallNode
	inPass, noADD bool // noADD is the hook's assertion
	script        []smallStep
	explore       bool // note the forks, from that of the script's last step on
	forks         []smallFork
	mid           smallPass
	report        Report
}

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
		if o.noADD && certain && x.recorded(a) && s.files[a].gen > 0 && s.files[a] == x.mid.listed.files[a] && s.at(a) < 0 && s.conts == x.mid.listed.conts {
			x.violate("%v is leaked, and the hook keeps it: %s", e.IP, e.Reason)
		}
	}
}

// settle ends all faults, and fails unless then each leak is released in time, or a rule keeps it.
func (x *explorer) settle(s smallNode, stuck bool) {
	s.held = nil
	for k := range s.conts {
		s.end(k)
		x.apply(&s, "c# in runtime", k)
		x.apply(&s, "c# in status", k)
		s.files[k].kind %= unreadable
	}
	for i := range s.pods {
		s.pods[i].there = s.pods[i].there && (stuck || s.of(i) >= 0)
	}
	k := x.key(&s, nil)
	for first, waiting := s.now, !x.settled[k]; waiting && x.broken == ""; {
		x.settled[k], waiting = true, false
		before := s.smallWorld
		x.pass(&s, nil, occasion{inLoop: true}, false)
		for _, e := range x.report.Reservations {
			if a := slices.Index(smallIPs[:], e.IP); s.files[a].gen > 0 && s.at(a) < 0 {
				within, rule := x.keeps(&before, a)
				if late := s.now > first+within; !late {
					waiting = true
				} else if e.Reason != rule {
					x.violate("%v is leaked, and %d s after the last fault it is kept: %s, not %q", e.IP, s.now-first, e.Reason, rule)
				}
			}
		}
		pause := int64(300)
		if next := x.report.NextCheck; !next.IsZero() {
			pause = min(pause, max(15, int64(next.Sub(s.reading().wall).Seconds())+1))
		}
		x.advance(&s.smallWorld, pause)
	}
}

// keeps returns how long a leak may be kept on this very node, and by which rule for ever.
func (x *explorer) keeps(s *smallWorld, a int) (within int64, rule Reason) {
	f, at, now := s.files[a], s.wall[fileStamp+a], s.now+s.off
	has := func(i int) bool { return s.files[i].kind == whole && s.wall[contCached+int(s.files[i].owner)] > 0 }
	oldest, some, passes, claimed, ended := now, false, x.has(fromCache), false, int64(0)
	for i, p := range s.pods {
		if at := s.wall[contCached+i]; at > 0 {
			oldest = min(oldest, at)
		}
		if s.files[i].gen > 0 && x.set.networks[i] == x.set.networks[a] {
			some, passes = some || has(i), passes && (has(i) || s.at(i) < 0)
		}
		if p.ended {
			ended = 300
		}
		status := slices.ContainsFunc(s.conts[:], func(c smallContainer) bool { return c.status && int(c.pod) == i && !x.is("more") })
		start := s.wall[podStart+i]
		claimed = claimed || p.there && !p.ended && !status && (at >= start-s.back-3 || start > now || x.is("static") && i == 0) ||
			s.files[i].gen > 0 && s.files[i].kind%unreadable > 0 && s.at(i) >= 0 // hazard 84
	}
	passes, ended = passes && some, ended+300 // the interval
	beforeBoot := at < s.low-1 || at > s.due && at < s.booted+s.off-1
	knows := passes && (has(a) || s.stepAt == 0 && at >= s.booted+s.off && at <= now && at > oldest)
	speaks := x.has(fromKubelet) || x.recorded(a)
	switch {
	case f.kind == broken:
		return 0, OwnerMalformed
	case f.kind == whole && x.foreign(int(f.owner)) && !x.has(fromProcesses) && !x.recorded(a):
		return 0, ForeignOwner
	case !speaks && !passes:
		return 0, NoSourceForNetwork
	case !speaks && !knows && !beforeBoot:
		return x.lag + 300, NotRecorded
	case x.is("pathless") && has(a):
		return x.lag + 300, EntryUnproven
	case knows:
		return x.minAge + ended - 270, ""
	case claimed && !beforeBoot && x.has(fromRuntime):
		return x.starting + ended, ""
	case claimed && !beforeBoot && !x.recorded(a):
		return x.starting + ended, StartingNoEnd
	case x.set.networks[a] == "third":
		return x.lag + ended, NetworkNotNamed
	case claimed && !x.has(fromIntents):
		return x.starting + ended, ""
	}
	return x.lag + ended, ""
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
	all.add(since(c.steps.TrustedSince), since(c.steps.BootedAt), since(c.steps.Left), now-s.booted, age(wall, s.low), age(wall, s.due), int64(c.steps.Back),
		int64(s.reading().wall.Sub(c.anchor.wall)-s.reading().mono+c.anchor.mono), int64(c.steps.Highest.Sub(simEpoch))-s.off*1e9, int64(s.steps),
		int64(s.fault), s.high-s.off, s.back)
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
		if fa == 1 && x.set.networks[0] != x.set.networks[1] || fc == 1 && x.is("foreign") {
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
			h.bits(s.hides(i^fc), s.mono[podStart+i] > 0 && s.mono[podStart+i] <= s.stepAt)
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

// arrive notes a node between passes, in which the place of a container that left nothing can be used again.
func (x *explorer) arrive(depth int, v *smallVisit) {
	for k := range v.s.conts {
		owns := slices.ContainsFunc(v.s.files[:], func(f struct{ gen, owner, kind uint8 }) bool { return f.gen > 0 && int(f.owner) == k })
		if c := &v.s.conts[k]; c.state == dead && !owns && v.s.wall[contCached+k] == 0 && !c.status && v.s.held == nil {
			*c = smallContainer{}
		}
	}
	if x.isNew(&v.s, nil) {
		x.levels[depth][1] = append(x.levels[depth][1], v)
	}
}

// visit runs a pass, and notes what may happen during it and where it leads to.
func (x *explorer) visit(depth int, v *smallVisit) {
	s := v.parent.s
	if v.hook {
		s.begin()
	}
	x.pass(&s, v.script, occasion{hook: v.hook, noADD: v.hook, inLoop: !v.hook}, true)
	if x.explore {
		x.arrive(depth, &smallVisit{s: s, parent: v.parent, what: v.what})
	}
	for i := 0; i < len(x.forks) && depth+2 < len(x.levels); i++ {
		for n, e := range x.events {
			fork := x.forks[i]
			if x.mid, x.inPass = fork.mid, true; e.when != 1 && x.apply(&fork.s, e.name, e.k) && x.isNew(&fork.s, &x.mid) {
				x.levels[depth+1][0] = append(x.levels[depth+1][0], &smallVisit{parent: v.parent, hook: v.hook,
					what: fmt.Sprintf("%s [%d: %s %d]", v.what, fork.mid.gap, e.name, e.k), script: append(slices.Clip(v.script), smallStep{fork.mid.gap, n})})
			}
		}
	}
	x.inPass, x.noADD = false, false
}

// goThrough visits all nodes within some steps, those with fewer first. It returns the way to one that breaks a rule.
func (x *explorer) goThrough(steps int) *smallVisit {
	x.levels = make([][2][]*smallVisit, steps+2)
	x.start()
	for depth := range steps + 1 {
		for _, v := range x.levels[depth][0] {
			if x.visit(depth, v); x.broken != "" {
				return v
			}
		}
		for _, v := range x.levels[depth][1] {
			if x.settle(v.s, false); x.broken == "" {
				x.settle(v.s, true)
			}
			for _, e := range x.events {
				if s := v.s; depth < steps && e.when != 2 && x.apply(&s, e.name, e.k) {
					x.arrive(depth+1, &smallVisit{s: s, parent: v, what: fmt.Sprint(e.name, " ", e.k)})
				}
			}
			if depth < steps && x.broken == "" {
				x.visit(depth+1, &smallVisit{parent: v, what: "PASS"})
			}
			quiet := v.s.conts[0].state != inFlight && v.s.conts[1].state != inFlight && x.mayRestart(&v.s.smallWorld, false)
			if depth < steps && x.broken == "" && x.has(fromRecord) && quiet {
				x.visit(depth+1, &smallVisit{parent: v, what: "HOOK", hook: true})
			}
			if x.broken != "" {
				return &smallVisit{parent: v, what: "then settle, PASS or HOOK"}
			}
		}
		x.states += len(x.levels[depth][0]) + len(x.levels[depth][1])
		x.levels[depth] = [2][]*smallVisit{}
	}
	return nil
}

// start notes the nodes to begin with.
func (x *explorer) start() {
	do := func(s smallNode, k int, events ...string) smallNode {
		for _, e := range events {
			if next := s; x.apply(&next, e, k) {
				s = next
			}
		}
		s.clock.observe(s.reading())
		return s
	}
	var s smallNode
	s.now = 2_592_001
	s.begin()
	up := []string{"ADD of c# ends", "c# in runtime", "c# in status", "wait L"}
	adding := do(s, 0, "pod # starts", "ADD for pod #")
	live := do(adding, 0, up...)
	both := do(do(adding, 0, "another address for c#"), 0, up...)
	x.arrive(0, &smallVisit{what: "live container", s: do(live, 1, "pod # starts")})
	x.arrive(0, &smallVisit{what: "ADD in flight", s: do(do(adding, 0, "wait MinAge"), 1, "pod # starts")})
	x.arrive(0, &smallVisit{what: "live container with both addresses", s: do(both, 1, "pod # starts")})
	x.arrive(0, &smallVisit{what: "leak", s: do(do(live, 0, "c# dies", "pod # deleted"), 1, "pod # starts")})
	if x.has(fromCache) {
		x.arrive(0, &smallVisit{what: "leak from before a boot with a late clock", s: do(live, 0, "reboot, clock -1h")})
	}
	x.arrive(0, &smallVisit{what: "leak from before the boot", s: do(do(live, 0, "reboot"), 1, "pod # starts")})
}

func newExplorer(t *testing.T, set smallSet) *explorer {
	t.Helper()
	x := &explorer{set: set, seen: make(map[smallHash]bool), settled: make(map[smallHash]bool), ids: [2]string{hex64("c0"), hex64("c1")}}
	if x.is("foreign") {
		x.ids[1] = "default-" + x.ids[1]
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, network1), 0o755))
	for i := range 40 {
		must(t, os.WriteFile(filepath.Join(dir, network1, fmt.Sprintf("10.0.0.%d", i)), nil, 0o600))
	}
	list, err := hostlocal.New(dir).List(t.Context())
	must(t, err)
	opts := Options{MinAge: set.minAge, SourceTimeout: time.Hour, Interval: 5 * time.Minute}
	x.r, err = New(hostlocal.New(dir), []string{network1, "second"}, x, opts)
	must(t, err)
	x.files, x.r.disk, x.r.source, x.r.now = list.Reservations, x, x, x.reading
	x.r.sleep = func(context.Context, time.Duration) bool { x.advance(&x.s.smallWorld, 1); return true }
	seconds := func(d time.Duration) int64 { return int64(d / time.Second) }
	x.lag, x.minAge, x.starting = seconds(x.r.opts.lag()), seconds(x.r.opts.MinAge), seconds(x.r.opts.StartingFor)+1
	for when, names := range smallEvents {
		for _, name := range names {
			if x.events = append(x.events, smallEvent{name, when, 0}); strings.Contains(name, "#") {
				x.events = append(x.events, smallEvent{name, when, 1})
			}
		}
	}
	return x
}

// TestExplore goes through every sequence of some steps of small nodes. It fails if an address of a live
// container is released, or if a leak is not, although all faults have ended and no rule keeps it there.
func TestExplore(t *testing.T) {
	for _, set := range smallSets() {
		if !regexp.MustCompile(*exploreSets).MatchString(set.name) {
			continue
		}
		x, steps, begun := newExplorer(t, set), set.steps+*exploreDeeper, time.Now()
		if testing.Short() {
			steps--
		}
		bad := x.goThrough(steps)
		fmt.Printf("Explore %s: %d steps, %d states, %d passes, %v\n", set.name, steps, x.states, x.passes, time.Since(begun).Round(10*time.Millisecond))
		if bad != nil {
			t.Errorf("%s: %s\n%s", set.name, x.broken, bad)
		}
	}
}

// TestExploreBeyondA4 shows that a step of the clock that A4 excludes loses an address.
func TestExploreBeyondA4(t *testing.T) {
	x := newExplorer(t, smallSets()[0])
	x.beyondA4 = true
	if bad := x.goThrough(3); bad == nil || !strings.Contains(x.broken, "live") {
		t.Errorf("nothing is lost: %s", x.broken)
	} else {
		t.Logf("%s\n%s", x.broken, bad)
	}
}
