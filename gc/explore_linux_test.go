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

var exploreDeeper = flag.Int("explore.deeper", 0, "how many steps more than usual TestExplore goes")

// A smallSet is a kind of small node. Its name says what is unusual: coarse, stamps of files are even seconds; more, a pod has
// addresses of another plugin; foreign, the second container is another tool's.
type smallSet struct {
	name     string
	steps    int
	sources  []simKind // in the order of their ranks; a record and intents speak of network1 only
	dated    simKind   // the one that may repeat an earlier list
	networks [2]string // of the two addresses
}

func smallSets() []smallSet {
	one, two, third := [2]string{network1, network1}, [2]string{network1, "second"}, [2]string{network1, "third"}
	return []smallSet{
		{"kubelet", 4, []simKind{fromKubelet}, "", one},
		{"kubelet, coarse, more", 3, []simKind{fromKubelet}, "", third},
		{"runtime", 3, []simKind{fromRuntime, fromKubelet}, fromRuntime, one},
		{"runtime, foreign", 3, []simKind{fromRuntime, fromKubelet}, "", one},
		{"record", 3, []simKind{fromIntents, fromRecord}, fromRecord, two},
		{"record, kubelet", 3, []simKind{fromIntents, fromRecord, fromKubelet}, "", two},
		{"record, foreign", 3, []simKind{fromRecord, fromKubelet}, "", one},
	}
}

// An explorer goes through the sequences of steps of a small node, and knows which nodes it saw.
type explorer struct {
	set            smallSet
	ids            [2]string
	lag, starting  int64
	beyondA4       bool
	r              *Reconciler
	files          []hostlocal.Reservation // with distinct identities
	events         []smallEvent
	seed           maphash.Seed
	seen, settled  map[uint64]bool
	levels         [][]*smallVisit
	broken         string
	states, passes int
	s              *smallNode // of the pass that is under way
	mid            *smallPass // nil: none is
	script         []smallStep
	explore        bool // note the forks, from that of the script's last step on
	forks          []smallVisit
}

// A smallPass is what a pass knows that the node does not show.
type smallPass struct {
	gap           int
	refused       bool
	begun, listed smallWorld
	said          [4]uint64 // what the sources saw, as each of key's images
}

// A smallVisit is of a node, or of a pass on it in which the script happens, or of where something may happen in a pass.
type smallVisit struct {
	s      smallNode
	mid    *smallPass
	way    string
	pass   bool
	script []smallStep
}

type smallStep struct{ gap, event int }

// apply lets an event happen to a copy of a node. It returns false where that is impossible or changes nothing.
func (x *explorer) apply(s smallNode, event int) (smallNode, bool) {
	e, k, before := &x.events[event/2], event%2, s
	ok := (k == 0 || strings.Contains(e.name, "#")) && e.do(&s, &s.conts[k], k)
	return s, ok && (s.smallWorld != before.smallWorld || s.held != before.held || e.name == "agent restarts")
}

// after returns a node after some events of the first thing, where they are possible.
func (x *explorer) after(s smallNode, names ...string) smallNode {
	for _, name := range names {
		if next, ok := x.apply(s, 2*slices.IndexFunc(x.events, func(e smallEvent) bool { return e.name == name })); ok {
			s = next
		}
	}
	return s
}

// atGap is called wherever something may happen during a pass.
func (x *explorer) atGap() {
	x.s.clock = x.r.clock
	here := len(x.script) == 0 // else the part up to the last step is known
	for x.mid.gap++; len(x.script) > 0 && x.script[0].gap == x.mid.gap; x.script = x.script[1:] {
		*x.s, _ = x.apply(*x.s, x.script[0].event)
	}
	if x.explore = x.explore && (!here || x.isNew(x.s)); x.explore && len(x.script) == 0 {
		mid := *x.mid
		x.forks = append(x.forks, smallVisit{s: *x.s, mid: &mid})
	}
	for n, said := range x.mid.said { // add the node as it is to what the pass saw
		now := x.s.as(x.mid.begun.now, x.mid.begun.off, uint8(n)&1, uint8(n)>>1)
		x.mid.said[n] = maphash.Comparable(x.seed, smallImage{now: now, pass: smallPass{said: [4]uint64{said}}})
	}
}

// pass runs a pass on a node, in which the script happens.
func (x *explorer) pass(s *smallNode, script []smallStep, explore bool) Report {
	x.s, x.script, x.explore, x.forks, x.mid, x.r.clock = s, script, explore, nil, &smallPass{begun: s.smallWorld}, s.clock
	x.mid.refused = s.held != nil && s.now-s.held.now > 600 && s.steps == 0
	report, err := x.r.reconcile(context.Background(), occasion{inLoop: true})
	if x.passes++; (err != nil) != x.mid.refused && (s.held == nil || err == nil && s.steps == 0) {
		x.broken = fmt.Sprintf("the error of a pass is %v, and whether it must be refused is %t", err, x.mid.refused)
	}
	s.clock, s.fault, x.mid = x.r.clock, 0, nil
	return report
}

// settle ends all faults, and fails unless then each leak is released in time, or a rule keeps it.
func (x *explorer) settle(s smallNode, stuck bool) {
	s.held = nil
	for i := range 2 {
		if c := &s.conts[i]; c.alive() {
			c.state, c.listed, c.status = added, x.has(fromRuntime) && !x.foreign(i), c.status || s.pods[c.pod].there
		}
		s.files[i].kind %= unreadable
		s.pods[i].there = s.pods[i].there && (stuck || s.of(i) >= 0)
	}
	k, late := x.key(&s), s.now+x.starting+900
	for waiting := !x.settled[k]; waiting && x.broken == ""; x.advance(&s.smallWorld, 300) {
		report := x.pass(&s, nil, false)
		x.settled[k], waiting = true, !report.NextCheck.IsZero() && s.now <= late
		for _, e := range report.Reservations {
			a := slices.Index(smallIPs[:], e.IP)
			leak := s.files[a].gen > 0 && s.holder(a) < 0 && e.Reason != x.keeps(&s, a)
			if waiting = waiting || leak; leak && s.now > late {
				x.broken = fmt.Sprintf("%v is leaked, and kept for ever: %s, not %q", e.IP, e.Reason, x.keeps(&s, a))
			}
		}
	}
}

// keeps returns the rule that keeps a leak for ever on this very node.
func (x *explorer) keeps(s *smallNode, a int) Reason {
	f, at, steps, claimed := s.files[a], s.times[stamp][a], &s.clock.steps, false
	for i, p := range s.pods {
		start, status := s.times[startedAt][i], func(c smallCont) bool { return c.status && int(c.pod) == i && !x.is("more") }
		claimed = claimed || p.there && !p.ended && !slices.ContainsFunc(s.conts[:], status) && (at >= start-s.back-3 || start > s.now+s.off) ||
			s.files[i].gen > 0 && s.files[i].kind != whole && s.holder(i) >= 0 // hazard 84
	}
	beforeBoot := smallWall(at+1).Before(steps.BootedAt) || smallWall(at).After(steps.Left) && at < s.booted+s.off-1
	switch {
	case f.kind == broken:
		return OwnerMalformed
	case f.kind == whole && x.foreign(int(f.owner)) && !x.recorded(a):
		return ForeignOwner
	case !x.has(fromKubelet) && !x.recorded(a):
		return NoSourceForNetwork
	case claimed && !beforeBoot && !x.has(fromRuntime) && !x.recorded(a):
		return StartingNoEnd
	case x.set.networks[a] == "third":
		return NetworkNotNamed
	}
	return ""
}

// A smallImage is equal for nodes that nothing can tell apart: at another time, with the containers or the addresses exchanged.
type smallImage struct {
	now, held smallWorld
	pass      smallPass
	agent     [9]time.Duration
}

// key returns one number for all images of a node, and of the pass that is under way.
func (x *explorer) key(s *smallNode) (least uint64) {
	at, steps, image := s.reading(), &s.clock.steps, smallImage{}
	image.agent = [9]time.Duration{4: steps.TrustedSince.Sub(at.wall), steps.BootedAt.Sub(at.wall), steps.Left.Sub(at.wall), steps.Back,
		steps.Highest.Sub(smallWall(s.off))}
	for id, first := range s.clock.finished {
		image.agent[slices.Index(smallPods[:], id.Name)] = at.mono - first + 1
	}
	least = ^uint64(0)
	for n := range uint8(4) {
		conts, addrs := n&1, n>>1
		if conts == 1 && x.is("foreign") || addrs == 1 && x.set.networks[0] != x.set.networks[1] {
			continue
		}
		if image.now = s.as(s.now, s.off, conts, addrs); s.held != nil {
			image.held = s.held.as(s.now, s.off, conts, addrs)
		}
		if m := x.mid; m != nil {
			begun := smallWorld{now: s.now - m.begun.now, off: s.off - m.begun.off}
			image.pass = smallPass{m.gap, m.refused, begun, m.listed.as(s.now, s.off, conts, addrs), [4]uint64{m.said[n]}}
		}
		image.agent[2], image.agent[3] = 0, 0
		for _, sight := range s.clock.files {
			a := slices.Index(smallIPs[:], sight.What.IP)
			if sight.What.Inode == x.files[s.files[a].gen].Inode() && sight.What.Owner == smallKinds[s.files[a].kind] {
				image.agent[2+a^int(addrs)] = at.mono - sight.Seen + 1
			}
		}
		least = min(least, maphash.Comparable(x.seed, image))
	}
	return least
}

// isNew notes a node, and reports whether it was not seen before.
func (x *explorer) isNew(s *smallNode) bool {
	n := len(x.seen)
	x.seen[x.key(s)] = true
	return len(x.seen) > n
}

func (x *explorer) arrive(depth int, s smallNode, way string) {
	if x.isNew(&s) {
		x.levels[depth] = append(x.levels[depth], &smallVisit{s: s, way: way})
	}
}

// visit runs a pass or settles a node, and notes what may happen then and where it leads to.
func (x *explorer) visit(depth int, v *smallVisit) {
	last, s, forks := depth+1 == len(x.levels), v.s, []smallVisit{{s: v.s}}
	if v.pass {
		x.pass(&s, v.script, true)
		if forks = x.forks; x.explore {
			x.arrive(depth, s, v.way)
		}
	} else {
		x.settle(s, false)
		x.settle(s, true)
		if !last {
			x.levels[depth+1] = append(x.levels[depth+1], &smallVisit{s: s, way: v.way + "; PASS", pass: true})
		}
	}
	for i := 0; i < len(forks)*2*len(x.events) && !last; i++ {
		fork, n := &forks[i/2/len(x.events)], i%(2*len(x.events))
		e := &x.events[n/2]
		x.mid = fork.mid
		if s, ok := x.apply(fork.s, n); ok && !v.pass && e.when != during {
			x.arrive(depth+1, s, fmt.Sprintf("%s; %s %d", v.way, e.name, n%2))
		} else if ok && v.pass && e.when != between && x.isNew(&s) {
			way, script := fmt.Sprintf("%s [%d: %s %d]", v.way, x.mid.gap, e.name, n%2), append(slices.Clip(v.script), smallStep{x.mid.gap, n})
			x.levels[depth+1] = append(x.levels[depth+1], &smallVisit{s: v.s, way: way, pass: true, script: script})
		}
	}
	x.mid = nil
}

// goThrough visits all nodes within some steps, those with fewer first. It returns the way to one that breaks a rule.
func (x *explorer) goThrough(steps int) string {
	x.levels = make([][]*smallVisit, steps+1)
	x.start()
	for depth := range x.levels {
		for ; len(x.levels[depth]) > 0; x.states++ {
			v := x.levels[depth][0]
			x.levels[depth] = x.levels[depth][1:]
			if x.visit(depth, v); x.broken != "" {
				return v.way
			}
		}
	}
	return ""
}

// start notes the nodes to begin with.
func (x *explorer) start() {
	s := smallNode{smallWorld: smallWorld{now: 2_592_001}}
	s.begin()
	begin := func(way string, s smallNode) smallNode {
		start, _ := x.apply(s, 1+2*slices.IndexFunc(x.events, func(e smallEvent) bool { return e.name == "pod # starts" }))
		start.clock.observe(start.reading())
		x.arrive(0, start, way)
		return s
	}
	up := []string{"ADD of c# ends", "c# in runtime", "c# in status", "wait L"}
	adding := begin("ADD in flight", x.after(s, "pod # starts", "ADD for pod #"))
	live := begin("live container", x.after(adding, up...))
	begin("live container with both addresses", x.after(x.after(adding, "another address for c#"), up...))
	begin("leak", x.after(live, "c# dies", "pod # deleted"))
	begin("leak from before the boot", x.after(live, "reboot"))
}

func newExplorer(t *testing.T, set smallSet) *explorer {
	t.Helper()
	x := &explorer{set: set, seed: maphash.MakeSeed(), seen: make(map[uint64]bool), settled: make(map[uint64]bool)}
	if x.ids = [2]string{hex64("c0"), hex64("c1")}; x.foreign(1) {
		x.ids[1] = "default-" + x.ids[1]
	}
	n := newNode(t)
	for i := range 40 {
		n.file(fmt.Sprintf("10.0.0.%d", i), "", 0)
	}
	list, err := n.store.List(t.Context())
	must(t, err)
	x.r, err = New(n.store, []string{network1, "second"}, x, Options{SourceTimeout: time.Hour, Interval: 5 * time.Minute})
	must(t, err)
	x.events, x.files, x.r.disk, x.r.source = x.allEvents(), list.Reservations, x, x
	x.r.now = func() reading { x.atGap(); return x.s.reading() }
	x.r.sleep = func(context.Context, time.Duration) bool { return x.advance(&x.s.smallWorld, 1) }
	x.lag, x.starting = int64(x.r.opts.lag()/time.Second), int64(x.r.opts.StartingFor/time.Second)+1
	return x
}

// TestExplore goes through every sequence of some steps of small nodes. It fails if an address of a live
// container is released, or if a leak is not, although all faults have ended and no rule keeps it there.
func TestExplore(t *testing.T) {
	for _, set := range smallSets() {
		t.Run(set.name, func(t *testing.T) {
			x, steps, begun := newExplorer(t, set), set.steps+*exploreDeeper, time.Now()
			if testing.Short() {
				steps--
			}
			if way := x.goThrough(steps); way != "" {
				t.Errorf("%s: %s\n%s", set.name, x.broken, way)
			}
			fmt.Printf("Explore %s: %d steps, %d states, %d passes, %v\n", set.name, steps, x.states, x.passes, time.Since(begun))
		})
	}
}

// TestExploreBeyondA4 shows that a step of the clock that A4 excludes loses an address.
func TestExploreBeyondA4(t *testing.T) {
	x := newExplorer(t, smallSets()[0])
	x.beyondA4 = true
	if way := x.goThrough(3); !strings.Contains(x.broken, "live") {
		t.Errorf("nothing is lost: %s", x.broken)
	} else {
		t.Logf("%s\n%s", x.broken, way)
	}
}
