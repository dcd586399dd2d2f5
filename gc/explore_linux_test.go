// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var exploreSeed, exploreDeeper = maphash.MakeSeed(), flag.Int("explore.deeper", 0, "how many steps more than usual TestExplore goes")

// A smallSet is a kind of small node. Its name says what is unusual: coarse, stamps of files are even seconds; more, a pod has
// addresses of another plugin; foreign, the second container is another tool's; beyond A4, a step of the clock loses an address.
type smallSet struct {
	name     string
	steps    int
	sources  []simKind // in the order of their ranks; a record and intents speak of network1 only
	networks [2]string // of the two addresses
}

var smallSets = []smallSet{
	{"kubelet", 4, []simKind{fromKubelet}, [2]string{network1, network1}},
	{"kubelet, beyond A4", 3, []simKind{fromKubelet}, [2]string{network1, network1}},
	{"kubelet, coarse, more", 3, []simKind{fromKubelet}, [2]string{network1, "third"}},
	{"runtime, foreign", 3, []simKind{fromRuntime, fromKubelet}, [2]string{network1, network1}},
	{"record", 3, []simKind{fromIntents, fromRecord}, [2]string{network1, "second"}},
	{"record, kubelet", 3, []simKind{fromIntents, fromRecord, fromKubelet}, [2]string{network1, "second"}},
	{"record, foreign", 3, []simKind{fromRecord, fromKubelet}, [2]string{network1, network1}},
}

// An explorer goes through the sequences of steps of a small node, and knows which nodes it saw.
type explorer struct {
	smallSet
	lag     int64
	r       *Reconciler
	events  []smallEvent
	seen    map[uint64]int // after how many steps, at least
	levels  [][]smallNode  // by the number of steps
	broken  string         // which rule was, and by what
	s       *smallNode     // on which a pass is under way
	refused bool           // it must be
	script  []smallNode    // what it becomes during the pass
	forks   []smallNode    // of the pass, after the last step of the script
}

// apply lets an event happen to a copy of a node. It returns false where that is impossible.
func (x *explorer) apply(s smallNode, event int) (smallNode, bool) {
	next, k := s, event%2
	if !x.events[event/2].do(&next, &next.conts[k], k) {
		return s, false
	}
	next.way += fmt.Sprintf("; %s %d", x.events[event/2].name, k)
	return next, true
}

// atGap is called wherever something may happen during a pass.
func (x *explorer) atGap() {
	s := x.s
	s.clock, s.way = x.r.clock, s.way+" |"
	for s.gap++; len(x.script) > 0 && x.script[0].gap == s.gap; x.script = x.script[1:] {
		*s = x.script[0]
	}
	if len(x.script) == 0 {
		x.forks = append(x.forks, *s)
	}
	s.saw = x.key(s)
}

// pass runs a pass on a node, in which the script happens.
func (x *explorer) pass(s *smallNode, script []smallNode) Report {
	x.s, x.script, x.forks, x.refused, x.r.clock = s, script, nil, false, s.clock
	s.saw, s.way = x.key(s), s.way+"; PASS"
	report, err := x.r.reconcile(context.Background(), occasion{inLoop: true})
	if (err != nil) != x.refused {
		x.broken = fmt.Sprintf("the error of a pass is %v, and whether it must be refused is %t", err, x.refused)
	}
	s.clock, s.fault, s.gap, s.saw = x.r.clock, "", 0, 0
	return report
}

// settle ends all faults, and fails unless then each leak is released in time.
func (x *explorer) settle(s smallNode, stuck bool) {
	for i := range 2 {
		if c := &s.conts[i]; c.alive() {
			c.state, c.listed, c.status = added, x.runs(i), c.status || s.pods[c.pod].there
		}
		if s.files[i].kind == hostlocal.Unreadable || s.holder(i) >= 0 {
			s.files[i].kind = hostlocal.Owned
		}
		s.pods[i].there = s.pods[i].there && (stuck || s.of(i) >= 0)
	}
	late := s.now + int64(x.r.opts.StartingFor/time.Second) + 900
	for waiting := true; waiting && x.broken == ""; x.advance(&s, 300) {
		report, a := x.pass(&s, nil), x.leak(&s)
		if waiting = a >= 0 || !report.NextCheck.IsZero() && s.now <= late; a >= 0 && s.now > late {
			x.broken = fmt.Sprint(smallIPs[a], " is leaked, and kept for ever")
		}
	}
}

// leak returns a leak that no rule keeps for ever, or -1.
func (x *explorer) leak(s *smallNode) int {
	return slices.IndexFunc([]int{0, 1}, func(a int) bool {
		f, steps, starting := s.files[a], &s.clock.steps, false
		older := func(at int64) bool { // than the boot
			return smallWall(at+1).Before(steps.BootedAt) || smallWall(at).After(steps.Left) && at < s.booted+s.off-1
		}
		for i, p := range s.pods {
			mayHold := f.stamp >= p.startedAt-s.back-3 || p.startedAt > s.now+s.off || older(p.startedAt)
			starting = starting || p.there && !p.ended && mayHold && (x.is("more") || s.of(i) < 0)
		}
		beforeBoot := older(f.stamp)
		kept := f.kind == hostlocal.Malformed || x.networks[a] == "third" || !x.recorded(a) &&
			(f.kind == hostlocal.Owned && x.foreign(f.owner) || !x.has(fromKubelet) || starting && !beforeBoot && !x.has(fromRuntime))
		return f.stamp != 0 && s.holder(a) < 0 && !kept
	})
}

// key returns a number of what later steps depend on.
func (x *explorer) key(s *smallNode) uint64 {
	if s.gap > 0 { // it saw the rest
		return maphash.Comparable(exploreSeed, s.smallWorld)
	}
	seen := fmt.Sprint(s.clock.finished)
	for _, f := range s.clock.files {
		seen += fmt.Sprint(fileOf(f.Reservation), f.seen)
	}
	return maphash.Comparable(exploreSeed, [3]any{s.smallWorld, s.clock.steps, seen})
}

// arrive reports whether a node was not seen after as few steps. If no pass is under way, it is visited later.
func (x *explorer) arrive(depth int, s smallNode) bool {
	k := x.key(&s)
	if least, ok := x.seen[k]; ok && least <= depth {
		return false
	} else if s.gap == 0 {
		x.levels[depth] = append(x.levels[depth], s)
	}
	x.seen[k] = depth
	return true
}

// passes runs a pass on a node in which the script happens, and those in which more does.
func (x *explorer) passes(depth int, before smallNode, script []smallNode) {
	s := before
	x.pass(&s, script)
	x.arrive(depth, s)
	forks := x.forks
	for i := 0; i < len(forks)*2*len(x.events) && depth < x.steps && x.broken == ""; i++ {
		if s, ok := x.apply(forks[i/(2*len(x.events))], i%(2*len(x.events))); ok && x.arrive(depth+1, s) {
			x.passes(depth+1, before, append(slices.Clip(script), s))
		}
	}
}

// goThrough visits all nodes within some steps, those with fewer first, until one breaks a rule.
func (x *explorer) goThrough() {
	x.levels = make([][]smallNode, x.steps+1)
	x.start()
	for depth := range x.levels {
		for ; len(x.levels[depth]) > 0 && x.broken == ""; x.levels[depth] = x.levels[depth][1:] {
			s := x.levels[depth][0]
			x.settle(s, false)
			x.settle(s, true)
			for n := 0; n < 2*len(x.events) && depth < x.steps; n++ {
				if s, ok := x.apply(s, n); ok {
					x.arrive(depth+1, s)
				}
			}
			if depth < x.steps {
				x.passes(depth+1, s, nil)
			}
		}
	}
}

// start notes the nodes to begin with: an ADD in flight, a container with one address or two, and leaks. On each another pod starts.
func (x *explorer) start() {
	const adding, live = "agent restarts 0; pod starts 0; ADD 0; ", "ADD ends 0; in runtime 0; in status 0; wait L 0; "
	for _, way := range []string{adding, adding + live, adding + "another address 0; " + live, adding + live + "dies 0; pod deleted 0; ",
		adding + live + "reboot 0; "} {
		s := smallNode{smallWorld: smallWorld{now: 2_592_001}}
		for _, step := range strings.Split(way+"pod starts 1", "; ") {
			event := slices.IndexFunc(x.events, func(e smallEvent) bool { return strings.HasPrefix(step, e.name) })
			s, _ = x.apply(s, 2*event+strings.Count(step, "1"))
		}
		x.arrive(0, s)
	}
}

// TestExplore goes through every sequence of some steps of small nodes. It fails if an address of a live
// container is released, or if a leak is not, although all faults have ended and no rule keeps it there.
func TestExplore(t *testing.T) {
	for _, set := range smallSets {
		t.Run(set.name, func(t *testing.T) {
			x := &explorer{smallSet: set, seen: make(map[uint64]int)}
			r, err := New(hostlocal.New(""), []string{network1, "second"}, x, Options{SourceTimeout: time.Hour, Interval: 5 * time.Minute})
			must(t, err)
			x.r, r.disk, r.source, x.lag, x.events = r, x, x, int64(r.opts.lag()/time.Second), x.allEvents()
			r.now = func() reading { x.atGap(); return x.s.reading() }
			r.sleep = func(context.Context, time.Duration) bool { return x.advance(x.s, 1) }
			if x.steps += *exploreDeeper; testing.Short() && !x.is("beyond A4") {
				x.steps--
			}
			if x.goThrough(); (x.broken == "") == x.is("beyond A4") {
				t.Errorf("what broke: %q\n%s", x.broken, x.s.way)
			}
		})
	}
}
