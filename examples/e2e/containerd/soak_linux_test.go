// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
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

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var soakFor = flag.Duration("soak", time.Minute, "how long pods start and stop in TestSoak; with -short 10s")

const (
	soakWorkers = 4
	soakKept    = 8  // maximum number of pods that are kept for several passes
	soakPool    = 60 // addresses of each family: soon used again, and enough with the leaks
)

// A soak starts and stops pods as fast as possible, while passes run one after the other. The
// minimum age is the command's default, which is longer than the test. So the reservations of
// a pod are made old as soon as the runtime lists it: from then on only the list keeps them.
// Those of a leak are made old, too, and must be released. Young reservations are those of ADDs
// in flight (R5).
type soak struct {
	*ledger
	n    *node
	kept chan struct{} // has an element for each pod that is kept

	mu       sync.Mutex
	inFlight time.Duration   // the oldest reservation of a sandbox that was not listed yet
	released map[string]bool // "address container" of each release

	leaking sync.Mutex // held while leaks are made old
}

func TestSoak(t *testing.T) {
	n := newNode(t, current(), func(n *node) { n.pool = soakPool })
	n.runAgent()
	s := &soak{ledger: newLedger(t, n.network), n: n, kept: make(chan struct{}, soakKept), released: make(map[string]bool)}
	passes, stop := context.WithCancel(t.Context())
	var collecting sync.WaitGroup
	defer collecting.Wait()
	defer stop()

	n.remove(n.run("zero").id) // host-local makes the network's directory for the first pod
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
	s.checkReleases()
	s.report(length, time.Since(began))
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

// round runs a pod. Some pods fail so that their addresses leak, and some are kept for several
// passes in another goroutine.
func (s *soak) round(ctx context.Context, keeping *sync.WaitGroup, name string) {
	if rand.N(8) == 0 || name == "web-0-0" { // at least one, also if few pods start
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
		s.count("kept pods")
		keeping.Go(func() {
			s.hold(ctx, p, 5*time.Second+rand.N(5*time.Second))
			s.end(p)
			<-s.kept
		})
	default:
		s.hold(ctx, p, rand.N(300*time.Millisecond))
		s.end(p)
	}
}

// hold checks a pod's reservations repeatedly for the given time.
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

// start runs a pod, measures how long its ADD was in flight, and makes its reservations old.
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
	if err == nil {
		err = stamp(s.network, time.Hour, p.ips...)
	}
	if err != nil {
		s.wrong(trouble, "pod %s: %v", name, err)
	}
	s.mu.Lock()
	s.inFlight = max(s.inFlight, age)
	s.mu.Unlock()
	return p, true
}

// end stops and removes a pod.
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

// leak runs a pod whose ADD fails after its IPAM, and whose DEL fails, too.
func (s *soak) leak(name string) {
	for _, command := range []string{"ADD", "DEL"} {
		if err := os.WriteFile(s.n.path("control/"+command+"."+name), []byte("fail"), 0o600); err != nil {
			s.wrong(trouble, "%v", err)
		}
	}
	p, err := s.n.tryRun(s.t.Context(), name)
	switch {
	case err == nil:
		s.wrong(trouble, "pod %s did not fail, and runs as %s", name, p.id)
	case strings.Contains(err.Error(), "gate: told to fail ADD"):
		s.count("leaky pods")
		if err := s.ageLeaks(); err != nil {
			s.wrong(trouble, "%v", err)
		}
	default:
		s.failed(err)
	}
}

// ageLeaks makes young leaks old. It does not change old ones: a pass may just release one, and
// an ADD reserve its address, and that reservation must stay young.
func (s *soak) ageLeaks() error {
	s.leaking.Lock()
	defer s.leaking.Unlock()
	all, err := hostlocal.New("").List(s.t.Context())
	for _, r := range all {
		if r.Network == s.network && time.Since(r.ReservedAt) < time.Hour/2 && s.leaked(r.ContainerID) {
			err = errors.Join(err, stamp(s.network, time.Hour, r.IP))
		}
	}
	return err
}

// leaked reports whether the plugin gate failed the container's ADD.
func (s *soak) leaked(containerID string) bool {
	_, err := os.Stat(filepath.Join(s.n.path("control"), "failed."+containerID))
	return err == nil
}

// failed counts the reason of a failed start.
func (s *soak) failed(err error) {
	if strings.Contains(err.Error(), "no IP addresses available") {
		s.count("pods without an address")
		return
	}
	s.wrong(trouble, "%v", err)
}

// collect runs one pass after the other until ctx ends.
func (s *soak) collect(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := s.n.collector(s.t.Context(), "release", s.network)
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

// checkReleases checks that the leaks were released, and nothing else.
func (s *soak) checkReleases() {
	s.t.Helper()
	for released := range s.released {
		s.count("released")
		_, id, _ := strings.Cut(released, " ")
		if !s.leaked(id) {
			s.wrong(liveReleased, "%s was released, but had not leaked", released)
		}
	}
	if want := 2 * s.counts["leaky pods"]; s.counts["released"] != want {
		s.t.Errorf("%d addresses were released, want the %d that leaked", s.counts["released"], want)
	}
	for _, kind := range []string{"kept pods", "leaky pods", "passes"} {
		if s.counts[kind] == 0 {
			s.t.Errorf("the test shows nothing: there were no %s", kind)
		}
	}
}

// report prints the figures.
func (s *soak) report(length, took time.Duration) {
	s.t.Helper()
	version, err := s.n.cri.Version(s.t.Context(), &runtimeapi.VersionRequest{})
	s.n.must(err)
	line := fmt.Sprintf("On %s %s for %v, with an ADD in flight for %v at most: %v, in %v",
		version.GetRuntimeName(), version.GetRuntimeVersion(), length,
		s.inFlight.Round(time.Millisecond), s.ledger, took.Round(time.Second))
	fmt.Println(line)
}
