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
	"strconv"
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
// entry of the cache shows whether it lives; foreign, the second container is another
// tool's; invisible, its namespace shows no address.
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
		{"cache, invisible", 4, []simKind{fromProcesses, fromCache}, none, one, 30 * time.Second},
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

func (e smallEvent) String() string { return strings.Replace(e.name, "#", strconv.Itoa(e.k), 1) }

// A smallVisit is a node, or a pass under way on that of its parent.
type smallVisit struct {
	s      *smallNode // nil: the pass is under way
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
	if x.isNew(v.s, nil) {
		x.levels[depth][1] = append(x.levels[depth][1], v)
	}
}

// visit runs a pass, and notes what may happen during it and where it leads to.
func (x *explorer) visit(depth int, v *smallVisit) {
	s := *v.parent.s
	if v.hook {
		s.begin()
	}
	x.pass(&s, v.script, occasion{hook: v.hook, noADD: v.hook, inLoop: !v.hook}, true)
	if x.explore {
		x.arrive(depth, &smallVisit{s: &s, parent: v.parent, what: v.what})
	}
	for i := 0; i < len(x.forks) && depth+2 < len(x.levels); i++ {
		for n, e := range x.events {
			fork := x.forks[i]
			if x.mid, x.inPass = fork.mid, true; e.when != 1 && x.apply(&fork.s, e.name, e.k) && x.isNew(&fork.s, &x.mid) {
				x.levels[depth+1][0] = append(x.levels[depth+1][0], &smallVisit{parent: v.parent, hook: v.hook,
					what: fmt.Sprintf("%s [%d: %s]", v.what, fork.mid.gap, e), script: append(slices.Clip(v.script), smallStep{fork.mid.gap, n})})
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
			step := "the faults end"
			if x.settle(*v.s, false); x.broken == "" {
				x.settle(*v.s, true)
			}
			for _, e := range x.events {
				if s := *v.s; depth < steps && e.when != 2 && x.apply(&s, e.name, e.k) {
					x.arrive(depth+1, &smallVisit{s: &s, parent: v, what: e.String()})
				}
			}
			if depth < steps && x.broken == "" {
				step = "PASS"
				x.visit(depth+1, &smallVisit{parent: v, what: step})
			}
			quiet := v.s.conts[0].state != inFlight && v.s.conts[1].state != inFlight && x.mayRestart(&v.s.smallWorld, false)
			if depth < steps && x.broken == "" && x.has(fromRecord) && quiet {
				step = "HOOK"
				x.visit(depth+1, &smallVisit{parent: v, what: step, hook: true})
			}
			if x.broken != "" {
				return &smallVisit{parent: v, what: step}
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
	first := do(s, 0, "pod # starts", "ADD for pod #")
	live, both := do(first, 0, up...), do(do(first, 0, "another address for c#"), 0, up...)
	begin := func(what string, s smallNode) { x.arrive(0, &smallVisit{what: what, s: &s}) }
	begin("live container", do(live, 1, "pod # starts"))
	begin("live container with both addresses", do(both, 1, "pod # starts"))
	begin("ADD in flight", do(do(first, 0, "wait MinAge"), 1, "pod # starts"))
	begin("leak", do(do(live, 0, "c# dies", "pod # deleted"), 1, "pod # starts"))
	begin("leak from before the boot", do(do(live, 0, "reboot"), 1, "pod # starts"))
	if x.has(fromCache) {
		begin("leak from before a boot with a late clock", do(live, 0, "reboot, clock -1h"))
	}
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
		took := time.Since(begun).Round(10 * time.Millisecond)
		fmt.Printf("Explore %s: %d steps, %d states, %d passes, %v\n", set.name, steps, x.states, x.passes, took)
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
