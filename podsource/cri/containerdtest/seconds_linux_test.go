// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

var secondsFor = flag.Duration("seconds", 40*time.Second, "how long pods start and stop in TestSeconds; "+
	"from 5m on also without the runtime as a source, and on Debian's containerd; with -short 10s")

const (
	secondsAge  = 3 * time.Second  // the minimum age
	secondsLong = 20 * time.Second // what a long ADD takes, or the start of a sandbox after its ADD
	secondsPool = 60               // addresses of each family: given again soon
	unlisted    = "pods that the runtime did not list at the minimum age"
	lateLeaks   = "leaks that took more than 10 s"
	cacheAlone  = "verdicts in use for which only the cache spoke"
)

// TestSeconds has pods start and stop while passes with a minimum age of three
// seconds run back to back, in this process. Nothing is made to look older than it
// is. Some ADDs take 20 s before or after the address is configured, some chains of
// plugins sleep in each, some sandboxes need 20 s after their ADD to start, and
// containerd is killed now and then. Some pods run in gVisor, and the runtime has
// lost its record of each of them: nothing but the cache shows them (hazard 59).
//
// With the kernel and libcni's cache among the sources a leak has to go with the
// first pass that could prove it: one that begins when no plugin, sandbox or
// network namespace of its container has been left for the minimum age, and in
// which no namespace in its network has an address of which there is no entry.
// With the runtime alone nothing may go, since it lists a pod that late.
func TestSeconds(t *testing.T) {
	length := *secondsFor
	long := length >= 5*time.Minute
	if testing.Short() {
		length = 10 * time.Second
	}
	for _, c := range []struct {
		name    string
		reason  string
		flavour flavour
		sources []string
		length  time.Duration
		kills   time.Duration // containerd is killed so often; 0: never
		always  bool          // also in the short forms
	}{
		{"cri, netns and cnicache", "a container shows from its IPAM ADD to its end",
			current(), []string{"cri", "netns", "cnicache"}, length, 30 * time.Second, true},
		{"netns and cnicache", "the pair is enough without the runtime's word",
			current(), []string{"netns", "cnicache"}, length / 4, 30 * time.Second, false},
		{"cri, netns and cnicache on debian", "libcni 1.1 writes no path of a namespace, but the result has it",
			debian(), []string{"cri", "netns", "cnicache"}, length / 4, 0, false},
		{"cri alone", "it lists a sandbox when its start is over, so seconds do not count",
			current(), []string{"cri"}, min(length/2, 30*time.Second), 0, true},
	} {
		if !c.always && !long {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			alone := len(c.sources) == 1
			n := newNode(t, c.flavour, func(n *node) {
				n.chained, n.ownLoopback = true, true
				if !alone { // where nothing is released a small pool would soon be empty
					n.pool = secondsPool
					n.gvisor = c.flavour.name == current().name
				}
			})
			n.runAgent()
			s := newSeconds(n, c.sources)
			s.anchors = n.runSome("anchor", 2) // with entries that prove the cache, from beginning to end
			s.took(s.anchors...)
			began := time.Now()
			s.load(c.length, c.kills)
			s.counts["addresses released under load"] = s.counted("addresses released")
			if !alone {
				s.settle(c.reason)
			}
			s.check(c.reason, alone, long && c.length == length)
			s.tell(c.name, time.Since(began))
		})
	}
}

// A seconds is a node with pods that come and go, and a collector beside them.
type seconds struct {
	*ledger
	n          *node
	reconciler *gc.Reconciler
	anchors    []pod
	kept       chan struct{} // holds a token for each pod that is kept
	power      atomic.Int64  // odd while containerd does not run

	mu       sync.Mutex
	looks    [][]podsource.Answer // of the pass that is under way
	live     map[string]bool      // the containers of pods, from the end of RunPodSandbox until StopPodSandbox begins
	released map[string]bool      // containers of which something was released
	late     map[string]bool      // containers that were older than the minimum age while the runtime did not list them
	leaks    map[string]time.Time // containers of which nothing but reservations is left, and since when
	reasons  map[gc.Reason]int    // of all passes
	slowest  time.Duration        // how long a leak took to go
	longest  time.Duration        // pass
}

func newSeconds(n *node, sources []string) *seconds {
	n.t.Helper()
	s := &seconds{
		ledger: newLedger(n.t, n.network), n: n, kept: make(chan struct{}, soakKept),
		live: make(map[string]bool), released: make(map[string]bool), late: make(map[string]bool),
		leaks: make(map[string]time.Time), reasons: make(map[gc.Reason]int),
	}
	runtime, err := cri.New(n.endpoint(), cri.Options{})
	n.must(err)
	kernel, err := netns.New(netns.Options{Nested: true})
	n.must(err)
	cache, err := cnicache.New(cnicache.Options{Living: kernel.Living})
	n.must(err)
	var members []podsource.Source
	for _, name := range sources {
		members = append(members, map[string]podsource.Source{"cri": forgetful{runtime}, "netns": kernel, "cnicache": cache}[name])
	}
	all := podsource.Union(members...)
	s.reconciler, err = gc.New(hostlocal.New(""), []string{n.network}, podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		a, err := all.Pods(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.looks = append(s.looks, a.Members())
		return a, err
	}), gc.Options{MinAge: secondsAge, SourceTimeout: patience})
	n.must(err)
	return s
}

// load has pods come and go for a while, and passes run beside them.
func (s *seconds) load(length, kills time.Duration) {
	alive, stop := context.WithCancel(s.t.Context())
	ctx, cancel := context.WithTimeout(alive, length)
	var collecting, working sync.WaitGroup
	defer collecting.Wait()
	defer working.Wait()
	defer stop() // where a test ends early
	defer cancel()
	collecting.Go(func() {
		for alive.Err() == nil {
			s.pass()
		}
	})
	s.workers(ctx, alive, &working, 3, "web", s.web)
	s.workers(ctx, alive, &working, 3, "held", func(_, alive context.Context, _ *sync.WaitGroup, name string) {
		// With the address in the namespace, or before: then nothing but the process shows it.
		s.slow(alive, name, []string{"ADD", "lease-ADD"}[rand.N(2)], "sleep "+secondsLong.String())
	})
	s.workers(ctx, alive, &working, 2, "chain", func(_, alive context.Context, _ *sync.WaitGroup, name string) {
		s.slow(alive, name, "lease-ADD", "sleep 4s", "ADD", "sleep 4s", "chained-ADD", "sleep 4s")
	})
	s.workers(ctx, alive, &working, 3, "slow", func(_, alive context.Context, _ *sync.WaitGroup, name string) {
		s.slow(alive, name, "START", secondsLong.String())
	})
	if s.n.gvisor {
		s.workers(ctx, alive, &working, 2, gvisorPods, s.guest)
	}
	if kills > 0 {
		for tick := time.Tick(kills); ctx.Err() == nil; {
			select {
			case <-tick:
				s.power.Add(1)
				s.n.kill()
				s.n.start()
				s.power.Add(1)
				s.count("kills")
			case <-ctx.Done():
			}
		}
	}
	<-ctx.Done()
	working.Wait()
}

// workers run rounds until ctx ends. What a round began it finishes, unless alive
// ends.
func (s *seconds) workers(ctx, alive context.Context, working *sync.WaitGroup, count int, name string,
	round func(ctx, alive context.Context, working *sync.WaitGroup, name string)) {
	for w := range count {
		working.Go(func() {
			for i := 0; ctx.Err() == nil && !s.t.Failed(); i++ {
				round(ctx, alive, working, fmt.Sprintf("%s-%d-%d", name, w, i))
			}
		})
	}
}

// web is the life of a pod whose start takes no time. Some leak. Some are kept
// for longer than the minimum age, while the worker goes on.
func (s *seconds) web(ctx, alive context.Context, working *sync.WaitGroup, name string) {
	if rand.N(8) == 0 || name == "web-0-0" {
		s.leak(alive, name)
		return
	}
	p, ok := s.start(alive, name)
	if !ok {
		return
	}
	select {
	case s.kept <- struct{}{}:
		s.count("kept pods")
		working.Go(func() {
			s.hold(ctx, p, secondsAge+rand.N(secondsLong))
			s.end(alive, p)
			<-s.kept
		})
	default:
		s.hold(ctx, p, rand.N(300*time.Millisecond))
		s.end(alive, p)
	}
}

// slow is the life of a pod whose start takes its time: orders are what tell takes,
// by twos. It stays for longer than two looks of a pass.
func (s *seconds) slow(alive context.Context, name string, orders ...string) {
	s.order(name, orders...)
	p, ok := s.start(alive, name)
	if !ok {
		return
	}
	s.count("slow pods")
	s.hold(alive, p, secondsAge)
	s.end(alive, p)
}

// order tells the plugins and the runtime what to do for a pod.
func (s *seconds) order(name string, orders ...string) {
	for pair := range slices.Chunk(orders, 2) {
		if err := os.WriteFile(s.n.path("control/"+pair[0]+"."+name), []byte(pair[1]), 0o600); err != nil {
			s.wrong(trouble, "%v", err)
		}
	}
}

// hold looks at a pod's reservations again and again for a while.
func (s *seconds) hold(ctx context.Context, p pod, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for tick := time.Tick(100 * time.Millisecond); ; {
		s.holds(p)
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
}

// start runs a pod. One whose start is interrupted by a kill is taken away.
func (s *seconds) start(alive context.Context, name string) (pod, bool) {
	power := s.awaitPower(alive)
	p, err := s.n.tryRun(s.t.Context(), name)
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "no IP addresses available"):
		s.count("pods without an address")
		return p, false
	case s.power.Load() != power:
		s.count("pods interrupted by a kill")
		s.abandon(alive, name)
		return p, false
	default:
		s.wrong(trouble, "pod %s: %v", name, err)
		return p, false
	}
	if len(p.ips) == 0 && s.power.Load() != power { // it ran, and was not asked in time
		s.abandon(alive, name)
		return p, false
	}
	s.count("pods")
	s.mu.Lock()
	s.live[p.id] = true
	released, late := s.released[p.id], s.late[p.id]
	s.mu.Unlock()
	if released {
		s.wrong(liveReleased, "something of pod %s, %s, was released while it was starting", name, p.id)
	}
	if late {
		s.count(unlisted)
	}
	s.took(p)
	s.holds(p)
	return p, true
}

// end takes a pod away, as kubelet does: until it is gone.
func (s *seconds) end(alive context.Context, p pod) {
	s.holds(p)
	s.leave(p)
	s.mu.Lock()
	delete(s.live, p.id)
	s.mu.Unlock()
	s.takeAway(alive, p.id)
}

// leak runs a pod of which one plugin fails in ADD and in DEL, some after a while.
func (s *seconds) leak(alive context.Context, name string) {
	prefix := []string{"", "chained-"}[rand.N(2)]
	s.order(name, prefix+"ADD", "fail", prefix+"DEL", "fail")
	if prefix != "" && rand.N(2) == 0 {
		s.order(name, "ADD", "sleep 4s")
	}
	power := s.awaitPower(alive)
	p, err := s.n.tryRun(s.t.Context(), name)
	now := time.Now()
	switch {
	case err == nil:
		s.wrong(trouble, "pod %s was to fail, and runs as %s", name, p.id)
		return
	case strings.Contains(err.Error(), "no IP addresses available"):
		s.count("pods without an address")
		return
	case s.power.Load() != power:
		s.count("pods interrupted by a kill")
	case strings.Contains(err.Error(), "gate: told to fail ADD"):
		s.count("leaky pods")
	default:
		s.wrong(trouble, "%v", err)
	}
	if err := os.Remove(s.n.path("control/" + prefix + "DEL." + name)); err != nil {
		s.wrong(trouble, "%v", err)
	}
	id, err := os.ReadFile(s.n.path("control/container." + name)) // where the plugin came to fail
	if err == nil && s.power.Load() == power && s.n.name == current().name {
		s.leakedAt(string(id), now)
		return
	}
	s.abandon(alive, name) // containerd 1.6 lists it, so that the clean-up is tried again
}

func (s *seconds) leaked(id string) { s.leakedAt(id, time.Now()) }

func (s *seconds) leakedAt(id string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaks[id] = at
}
