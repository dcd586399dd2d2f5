// SPDX-License-Identifier: Apache-2.0

package containerd

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
	secondsLong = 20 * time.Second // the duration of a long ADD, or of a sandbox's start after its ADD
	secondsPool = 60               // addresses of each family: soon used again
	unlisted    = "pods that the runtime did not list at the minimum age"
	lateLeaks   = "leaks that took more than 10 s"
	cacheAlone  = "verdicts in use by the cache alone"
)

// TestSeconds starts and stops pods while passes with a minimum age of three seconds run one
// after the other, in this process. No timestamp is changed. Some ADDs take 20 s before or
// after the address is configured, in some chains each plugin sleeps, some sandboxes start 20 s
// after their ADD, and containerd is killed now and then. Some pods run in gVisor, and the
// runtime has lost the record of each of them: only the cache shows them (hazard 59).
//
// With the kernel and libcni's cache among the sources a leak must be released by the first pass
// that can prove it: a pass that begins when no plugin, sandbox or network namespace of its
// container has existed for the minimum age, and in which each address in a network namespace
// has an entry. With the runtime alone nothing may be released, since it may list a pod later.
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
		kills   time.Duration // the interval between kills of containerd; 0: none
		always  bool          // also in the short forms
	}{
		{"cri, netns and cnicache", "a container is visible from its IPAM ADD to its end",
			current(), []string{"cri", "netns", "cnicache"}, length, 30 * time.Second, true},
		{"netns and cnicache", "the two suffice without the runtime",
			current(), []string{"netns", "cnicache"}, length / 4, 30 * time.Second, false},
		{"cri, netns and cnicache on debian", "libcni 1.1 does not write the path of the namespace, but the result has it",
			debian(), []string{"cri", "netns", "cnicache"}, length / 4, 0, false},
		{"cri alone", "it lists a sandbox after its start, so a minimum age of seconds does not count",
			current(), []string{"cri"}, min(length/2, 30*time.Second), 0, true},
	} {
		if !c.always && !long {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			alone := len(c.sources) == 1
			n := newNode(t, c.flavour, func(n *node) {
				n.chained, n.ownLoopback = true, true
				if !alone { // if nothing is released, a small pool is soon empty
					n.pool = secondsPool
					n.gvisor = c.flavour.name == current().name
				}
			})
			n.runAgent()
			s := newSeconds(n, c.sources)
			s.permanent = n.runSome("permanent", 2) // their entries prove the cache during the whole test
			s.took(s.permanent...)
			began := time.Now()
			s.load(c.length, c.kills)
			s.counts["addresses released under load"] = s.counted("addresses released")
			if !alone {
				s.awaitReleases(c.reason)
			}
			s.check(c.reason, alone, long && c.length == length)
			s.report(c.name, time.Since(began))
		})
	}
}

// A seconds is a node with pods that start and stop, and a reconciler.
type seconds struct {
	*ledger
	n          *node
	reconciler *gc.Reconciler
	permanent  []pod
	kept       chan struct{} // has an element for each pod that is kept
	epoch      atomic.Int64  // incremented when containerd is killed, and when it runs again; odd while it does not run

	mu       sync.Mutex
	answers  [][]podsource.Answer // of the current pass
	live     map[string]bool      // containers from the end of RunPodSandbox to the start of StopPodSandbox
	released map[string]bool      // containers with a released reservation
	late     map[string]bool      // containers that were older than the minimum age and not listed by the runtime
	leaks    map[string]time.Time // leaked containers, and the times since which only their reservations are left
	reasons  map[gc.Reason]int    // of all passes
	slowest  time.Duration        // the longest time until a leak was released
	longest  time.Duration        // the longest duration of a pass
}

func newSeconds(n *node, sources []string) *seconds {
	n.t.Helper()
	s := &seconds{
		ledger: newLedger(n.t, n.network), n: n, kept: make(chan struct{}, soakKept),
		live: make(map[string]bool), released: make(map[string]bool), late: make(map[string]bool),
		leaks: make(map[string]time.Time), reasons: make(map[gc.Reason]int),
	}
	runtime, err := cri.New(n.endpoint(), cri.Options{Timeout: maxWait})
	n.must(err)
	kernel, err := netns.New(netns.Options{Nested: true})
	n.must(err)
	cache, err := cnicache.New(cnicache.Options{Living: kernel.Living})
	n.must(err)
	var members []podsource.Source
	for _, name := range sources {
		members = append(members, map[string]podsource.Source{"cri": withoutGVisorPods{runtime}, "netns": kernel, "cnicache": cache}[name])
	}
	all := podsource.Union(members...)
	s.reconciler, err = gc.New(hostlocal.New(""), []string{n.network}, podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		a, err := all.Pods(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answers = append(s.answers, a.Members())
		return a, err
	}), gc.Options{MinAge: secondsAge, SourceTimeout: maxWait})
	n.must(err)
	return s
}

// load starts and stops pods for the given time, while passes run.
func (s *seconds) load(length, kills time.Duration) {
	alive, stop := context.WithCancel(s.t.Context())
	ctx, cancel := context.WithTimeout(alive, length)
	var collecting, working sync.WaitGroup
	defer collecting.Wait()
	defer working.Wait()
	defer stop() // if the test ends early
	defer cancel()
	collecting.Go(func() {
		for alive.Err() == nil {
			s.pass()
		}
	})
	s.workers(ctx, alive, &working, 3, "web", s.web)
	s.workers(ctx, alive, &working, 3, "held", func(_, alive context.Context, _ *sync.WaitGroup, name string) {
		// Either after the address is configured, or before: then only the process shows it.
		s.slow(alive, name, []string{"ADD", "lease-ADD"}[rand.N(2)], "sleep "+secondsLong.String())
	})
	s.workers(ctx, alive, &working, 2, "chain", func(_, alive context.Context, _ *sync.WaitGroup, name string) {
		s.slow(alive, name, "lease-ADD", "sleep 4s", "ADD", "sleep 4s", "chained-ADD", "sleep 4s")
	})
	s.workers(ctx, alive, &working, 3, "slow", func(_, alive context.Context, _ *sync.WaitGroup, name string) {
		s.slow(alive, name, "START", secondsLong.String())
	})
	if s.n.gvisor {
		s.workers(ctx, alive, &working, 2, gvisorPods, s.gvisorPod)
	}
	if kills > 0 {
		for tick := time.Tick(kills); ctx.Err() == nil; {
			select {
			case <-tick:
				s.epoch.Add(1)
				s.n.kill()
				s.n.start()
				s.epoch.Add(1)
				s.count("kills")
			case <-ctx.Done():
			}
		}
	}
	<-ctx.Done()
	working.Wait()
}

// workers runs rounds in count goroutines until ctx ends. A round ends early only if alive ends.
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

// web runs a pod that starts quickly. Some pods leak, and some are kept for longer than the
// minimum age in another goroutine.
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

// slow runs a pod whose start is delayed by the orders, which are pairs of a command and an
// instruction as for [node.tell]. It keeps the pod for longer than a pass.
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

// order is [node.tell] with several pairs for a pod.
func (s *seconds) order(name string, orders ...string) {
	for pair := range slices.Chunk(orders, 2) {
		if err := os.WriteFile(s.n.path("control/"+pair[0]+"."+name), []byte(pair[1]), 0o600); err != nil {
			s.wrong(trouble, "%v", err)
		}
	}
}

// hold checks a pod's reservations repeatedly for the given time.
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

// start runs a pod. If a kill interrupts the start, it removes the pod.
func (s *seconds) start(alive context.Context, name string) (pod, bool) {
	epoch := s.awaitContainerd(alive)
	p, err := s.n.tryRun(s.t.Context(), name)
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "no IP addresses available"):
		s.count("pods without an address")
		return p, false
	case s.epoch.Load() != epoch:
		s.count("pods interrupted by a kill")
		s.abandon(alive, name)
		return p, false
	default:
		s.wrong(trouble, "pod %s: %v", name, err)
		return p, false
	}
	if len(p.ips) == 0 && s.epoch.Load() != epoch { // it runs, but containerd was killed before it returned the status
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

// end stops and removes a pod, as kubelet does.
func (s *seconds) end(alive context.Context, p pod) {
	s.holds(p)
	s.leave(p)
	s.mu.Lock()
	delete(s.live, p.id)
	s.mu.Unlock()
	s.stopAndRemove(alive, p.id)
}

// leak runs a pod with a plugin that fails in ADD and in DEL, in some cases after a delay.
func (s *seconds) leak(alive context.Context, name string) {
	prefix := []string{"", "chained-"}[rand.N(2)]
	s.order(name, prefix+"ADD", "fail", prefix+"DEL", "fail")
	if prefix != "" && rand.N(2) == 0 {
		s.order(name, "ADD", "sleep 4s")
	}
	epoch := s.awaitContainerd(alive)
	p, err := s.n.tryRun(s.t.Context(), name)
	now := time.Now()
	switch {
	case err == nil:
		s.wrong(trouble, "pod %s did not fail, and runs as %s", name, p.id)
		return
	case strings.Contains(err.Error(), "no IP addresses available"):
		s.count("pods without an address")
		return
	case s.epoch.Load() != epoch:
		s.count("pods interrupted by a kill")
	case strings.Contains(err.Error(), "gate: told to fail ADD"):
		s.count("leaky pods")
	default:
		s.wrong(trouble, "%v", err)
	}
	if err := os.Remove(s.n.path("control/" + prefix + "DEL." + name)); err != nil {
		s.wrong(trouble, "%v", err)
	}
	id, err := os.ReadFile(s.n.path("control/container." + name)) // written by the plugin that failed
	if err == nil && s.epoch.Load() == epoch && s.n.name == current().name {
		s.leakedAt(string(id), now)
		return
	}
	s.abandon(alive, name) // containerd 1.6 lists it, so that the DEL is repeated
}

func (s *seconds) leaked(id string) { s.leakedAt(id, time.Now()) }

func (s *seconds) leakedAt(id string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaks[id] = at
}
