// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// smallSets have the sources of nodes, and what is unusual about these.
func smallSets() []smallSet {
	one, two, third := [2]string{network1, network1}, [2]string{network1, "second"}, [2]string{network1, "third"}
	short := Options{MinAge: 30 * time.Second}
	const no simKind = -1
	return []smallSet{
		{name: "kubelet", steps: 4, sources: []simKind{fromKubelet}, dated: fromKubelet, networks: one},
		{name: "kubelet, coarse", steps: 3, sources: []simKind{fromKubelet}, dated: no, networks: third, coarse: true, more: true},
		{name: "kubelet, static", steps: 3, sources: []simKind{fromKubelet}, dated: no, networks: one, static: true, noEnd: true},
		{name: "runtime", steps: 4, sources: []simKind{fromRuntime, fromKubelet}, dated: fromRuntime, networks: one},
		{name: "runtime, foreign", steps: 3, sources: []simKind{fromRuntime, fromKubelet}, dated: no, networks: one, foreign: true},
		{name: "cache", steps: 4, sources: []simKind{fromProcesses, fromCache}, dated: no, networks: one, opts: short},
		{name: "cache, foreign", steps: 3, sources: []simKind{fromProcesses, fromCache, fromKubelet}, dated: fromProcesses, networks: two, foreign: true, opts: short},
		{name: "cache, pathless", steps: 3, sources: []simKind{fromProcesses, fromCache, fromKubelet}, dated: no, networks: one, pathless: true, opts: short},
		{name: "record", steps: 4, sources: []simKind{fromIntents, fromRecord}, dated: fromRecord, networks: one},
		{name: "record, kubelet", steps: 3, sources: []simKind{fromIntents, fromRecord, fromKubelet}, dated: fromRecord, networks: two},
		{name: "record, foreign", steps: 3, sources: []simKind{fromRecord, fromKubelet}, dated: no, networks: one, foreign: true},
		{name: "all", steps: 3, sources: []simKind{fromProcesses, fromCache, fromRuntime, fromKubelet}, dated: fromRuntime, networks: one, opts: short},
	}
}

// starts returns the nodes to begin with: with a live container, with an ADD in flight, with a leak, and with one after a boot.
func (x *explorer) starts() (all []*smallVisit) {
	var s smallNode
	s.now = 2_592_001
	s.begin()
	do := func(s smallNode, k int, events ...string) smallNode {
		for _, e := range events {
			x.apply(&s, e, k)
		}
		s.clock.observe(s.reading())
		return s
	}
	live := do(s, 0, "pod # starts", "ADD for pod #", "ADD of c# ends", "c# listed by the runtime", "c# in its pod's status", "wait L")
	begin := func(name string, s smallNode) {
		all = append(all, &smallVisit{s: do(s, 1, "pod # starts"), what: name})
	}
	begin("a live container", live)
	begin("an ADD in flight", do(s, 0, "pod # starts", "ADD for pod #", "wait MinAge"))
	begin("a leak", do(live, 0, "c# dies", "pod # deleted"))
	begin("a leak from before the boot", do(live, 0, "reboot"))
	return all
}

func newExplorer(t *testing.T, set smallSet) *explorer {
	t.Helper()
	x := &explorer{set: set, seen: make(map[uint64]bool), settled: make(map[uint64]bool), ids: [2]string{hex64("c0"), hex64("c1")}}
	if set.foreign {
		x.ids[1] = "default-" + x.ids[1]
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, network1), 0o755))
	for i := range 40 {
		must(t, os.WriteFile(filepath.Join(dir, network1, fmt.Sprintf("10.0.0.%d", i)), nil, 0o600))
	}
	list, err := hostlocal.New(dir).List(t.Context())
	must(t, err)
	x.files = list.Reservations
	x.set.opts.SourceTimeout, x.set.opts.Interval = time.Hour, 5*time.Minute
	networks := []string{network1}
	if set.networks[1] == "second" {
		networks = append(networks, "second")
	}
	x.r, err = New(hostlocal.New(dir), networks, x, x.set.opts)
	must(t, err)
	x.r.disk, x.r.source, x.r.now = x, x, x.reading
	x.r.sleep = func(context.Context, time.Duration) bool { x.advance(&x.s.smallWorld, 1); return true }
	seconds := func(d time.Duration) int64 { return int64(d / time.Second) }
	x.lag, x.minAge, x.starting = seconds(x.r.opts.lag()), seconds(x.r.opts.MinAge), seconds(x.r.opts.StartingFor)+1
	for when, names := range smallEvents {
		for _, name := range names {
			x.events = append(x.events, smallEvent{name, when, 0})
			if strings.Contains(name, "#") {
				x.events = append(x.events, smallEvent{name, when, 1})
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

// TestExplore goes through every sequence of some steps of a small node, with each set of sources. It
// fails if an address of a live container is released, or if a leak is not released although all
// faults have ended, and no rule keeps it on that very node.
func TestExplore(t *testing.T) {
	for _, set := range smallSets() {
		if !regexp.MustCompile(*exploreSets).MatchString(set.name) {
			continue
		}
		x, begun := newExplorer(t, set), cpuTime()
		steps := set.steps + *exploreDeeper
		if testing.Short() {
			steps--
		}
		bad := x.explore(steps)
		fmt.Printf("Explore %s: %d steps, %d states, %d passes, %v CPU\n", set.name, steps, x.states, x.passes, (cpuTime() - begun).Round(10*time.Millisecond))
		if bad != nil {
			t.Errorf("%s: %s\n%s", set.name, x.broken, bad)
		}
	}
}

// TestExploreBeyondA4 shows that a step of the clock that A4 excludes loses an address.
func TestExploreBeyondA4(t *testing.T) {
	x := newExplorer(t, smallSets()[0])
	x.beyondA4 = true
	bad := x.explore(4)
	if bad == nil {
		t.Fatal("nothing is lost")
	}
	t.Logf("%s\n%s", x.broken, bad)
}
