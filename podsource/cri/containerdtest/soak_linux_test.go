// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var soakFor = flag.Duration("soak", time.Minute, "how long pods start and stop in TestSoak; with -short 10s")

const (
	soakWorkers = 4
	soakKept    = 8  // pods that are kept for longer than the minimum age, at a time
	soakPool    = 60 // addresses of each family: given again soon, and enough with the leaks
)

// A soak is pods that start and stop as fast as it goes, while passes run back to
// back.
type soak struct {
	*ledger
	n      *node
	minAge time.Duration
	kept   chan struct{} // holds a token for each pod that is kept

	mu       sync.Mutex
	inFlight time.Duration   // the oldest reservation of a sandbox that was not listed yet
	released map[string]bool // "address container" of each release
}

// TestSoak runs with a minimum age of seconds. It must exceed the time for which
// an ADD is in flight (A2), from the reservation until the runtime lists the
// sandbox. So this time is measured first, at the same load, and the minimum age
// is five times the longest that was seen, and five seconds at least. It is
// measured on, and longer than the minimum age would be a failure of its own.
func TestSoak(t *testing.T) {
	n := newNode(t, current(), func(n *node) { n.pool = soakPool })
	n.runAgent()
	s := &soak{ledger: newLedger(t, n.network), n: n, minAge: time.Hour,
		kept: make(chan struct{}, soakKept), released: make(map[string]bool)}
	passes, stop := context.WithCancel(t.Context())
	var collecting sync.WaitGroup
	defer collecting.Wait()
	defer stop()

	n.remove(n.run("zero").id) // host-local makes the network's folder for the first pod
	s.measure()
	length := *soakFor
	if testing.Short() {
		length = 10 * time.Second
	}
	began := time.Now()
	collecting.Go(func() { s.collect(passes) })
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var keeping sync.WaitGroup
	s.work(ctx, "web", func(name string) { s.round(ctx, &keeping, name) })
	keeping.Wait()

	n.await("all leaks to be released", func(context.Context) error {
		if left := n.reservations(n.network); len(left) > 0 {
			return fmt.Errorf("%v are reserved", left)
		}
		return nil
	})
	stop()
	collecting.Wait()
	s.settle()
	s.tell(length, time.Since(began))
}

// work runs rounds in several goroutines until ctx ends.
func (s *soak) work(ctx context.Context, name string, round func(name string)) {
	var working sync.WaitGroup
	for w := range soakWorkers {
		working.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				round(fmt.Sprintf("%s-%d-%d", name, w, i))
			}
		})
	}
	working.Wait()
}

// measure sets the minimum age.
func (s *soak) measure() {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	passes, stop := context.WithCancel(s.t.Context())
	var collecting sync.WaitGroup
	collecting.Go(func() { s.collect(passes) })
	var mu sync.Mutex
	seen := 0
	s.work(ctx, "first", func(name string) {
		if p, ok := s.start(name); ok {
			s.end(p)
		}
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen >= 3*soakWorkers || s.t.Failed() {
			cancel()
		}
	})
	stop()
	collecting.Wait()
	s.minAge = max(5*time.Second, (5 * s.inFlight).Round(time.Second))
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	clear(s.counts)
	s.counts = map[string]int{heldTwice: s.counts[heldTwice], liveReleased: s.counts[liveReleased], trouble: s.counts[trouble]}
}

// round is the life of a pod. Some fail so that their addresses leak. Some are
// kept for longer than the minimum age, while the worker goes on: only those does
// the runtime's list keep.
func (s *soak) round(ctx context.Context, keeping *sync.WaitGroup, name string) {
	if rand.N(8) == 0 {
		s.leak(name)
		return
	}
	p, ok := s.start(name)
	if !ok {
		return
	}
	s.count("pods")
	select {
	case s.kept <- struct{}{}:
		s.count("old pods")
		keeping.Go(func() {
			s.hold(ctx, p, s.minAge+rand.N(s.minAge))
			s.end(p)
			<-s.kept
		})
	default:
		s.hold(ctx, p, rand.N(300*time.Millisecond))
		s.end(p)
	}
}

// hold looks at a pod's reservations again and again for a while.
func (s *soak) hold(ctx context.Context, p pod, length time.Duration) {
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

// start runs a pod, and measures for how long its ADD was in flight.
func (s *soak) start(name string) (pod, bool) {
	p, err := s.n.tryRun(s.t.Context(), name)
	if err != nil {
		s.failed(err)
		return p, false
	}
	s.took(p)
	err = s.n.awaitListed(s.t.Context(), p.id)
	var age time.Duration
	if err == nil {
		age, err = ageOf(s.network, p.ips)
	}
	if err != nil {
		s.wrong(trouble, "pod %s: %v", name, err)
	}
	s.mu.Lock()
	s.inFlight = max(s.inFlight, age)
	s.mu.Unlock()
	if age >= s.minAge {
		s.wrong(trouble, "the ADD of pod %s was in flight for %v, and the minimum age is %v: this machine is too busy, "+
			"and what else goes wrong proves nothing (A2)", name, age, s.minAge)
	}
	return p, true
}

// end takes a pod away.
func (s *soak) end(p pod) {
	s.holds(p)
	s.leave(p)
	if err := s.n.tryStop(s.t.Context(), p.id); err != nil {
		s.wrong(trouble, "stopping pod %s: %v", p.name, err)
	}
	if err := s.n.tryRemove(s.t.Context(), p.id); err != nil {
		s.wrong(trouble, "removing pod %s: %v", p.name, err)
	}
}

// leak runs a pod that fails after its IPAM, and whose clean-up fails, too.
func (s *soak) leak(name string) {
	for _, command := range []string{"ADD", "DEL"} {
		if err := os.WriteFile(s.n.path("control/"+command+"."+name), []byte("fail"), 0o600); err != nil {
			s.wrong(trouble, "%v", err)
		}
	}
	p, err := s.n.tryRun(s.t.Context(), name)
	switch {
	case err == nil:
		s.wrong(trouble, "pod %s was to fail, and runs as %s", name, p.id)
	case strings.Contains(err.Error(), "gate: told to fail ADD"):
		s.count("leaky pods")
	default:
		s.failed(err)
	}
}

// failed counts why a pod could not be run.
func (s *soak) failed(err error) {
	if strings.Contains(err.Error(), "no IP addresses available") {
		s.count("pods without an address")
		return
	}
	s.wrong(trouble, "%v", err)
}

// collect makes passes back to back until ctx ends.
func (s *soak) collect(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := s.n.collector(s.t.Context(), "release", s.network, "--min-age", s.minAge.String())
		if err != nil || p.status != 0 {
			s.wrong(trouble, "pass: %v: %v", err, p)
			return
		}
		s.count("passes")
		s.mu.Lock()
		for ip, id := range p.released {
			s.released[ip.String()+" "+id] = true
		}
		s.mu.Unlock()
	}
}

// settle checks that what was released are the leaks, and nothing else.
func (s *soak) settle() {
	s.t.Helper()
	for released := range s.released {
		s.count("released")
		_, id, _ := strings.Cut(released, " ")
		if _, err := os.Stat(filepath.Join(s.n.path("control"), "failed."+id)); err != nil {
			s.wrong(liveReleased, "%s was released, and had not leaked: %v", released, err)
		}
	}
	if want := 2 * s.counts["leaky pods"]; s.counts["released"] != want {
		s.t.Errorf("%d addresses were released, and %d had leaked", s.counts["released"], want)
	}
	for _, kind := range []string{"old pods", "leaky pods", "passes"} {
		if s.counts[kind] == 0 {
			s.t.Errorf("nothing was proved: there were no %s", kind)
		}
	}
}

// tell prints the figures, also where .ci/run looks for them.
func (s *soak) tell(length, took time.Duration) {
	s.t.Helper()
	version, err := s.n.cri.Version(s.t.Context(), &runtimeapi.VersionRequest{})
	s.n.must(err)
	line := fmt.Sprintf("On %s %s for %v, with a minimum age of %v and an ADD in flight for %v at most: %v, in %v",
		version.GetRuntimeName(), version.GetRuntimeVersion(), length, s.minAge,
		s.inFlight.Round(time.Millisecond), s.ledger, took.Round(time.Second))
	fmt.Println(line)
	path := os.Getenv("HOSTLOCAL_GC_FIGURES")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path+".containerd", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	s.n.must(err)
	defer f.Close()
	_, err = fmt.Fprintln(f, line)
	s.n.must(err)
}
