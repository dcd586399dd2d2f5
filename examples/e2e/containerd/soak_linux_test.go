// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

var soakFor = flag.Duration("soak", time.Minute, "how long pods start and stop in each part of TestSoak; with -short 10s")

// TestSoak starts and stops pods while passes run one after the other, in this process. A live address is never
// released or given to two pods, and in the end every leak is released.
//
// With the runtime alone the default minimum age counts. So the reservations of a pod are made old as soon as the
// runtime lists it, and those of a leak at once. With the kernel and libcni's cache the minimum age is three seconds,
// and no timestamp is changed: some ADDs take 20 s before or after the address is configured, in some chains each
// plugin sleeps, some sandboxes start 20 s after their ADD, and containerd is killed now and then.
func TestSoak(t *testing.T) {
	for _, c := range []struct {
		reason  string
		flavour flavour
		sources []string
	}{
		{"the runtime lists each pod that is not young", current(), []string{"cri"}},
		{"a container is visible from its IPAM ADD to its end", current(), []string{"cri", "netns", "cnicache"}},
		{"kernel and cache suffice, also where libcni 1.1 writes no path of the namespace", debian(), []string{"netns", "cnicache"}},
	} {
		t.Run(strings.Join(c.sources, " ")+": "+c.reason, func(t *testing.T) {
			n := newNode(t, c.flavour, withPool(60), chained, func(n *node) { n.ownLoopback = true }) // addresses are soon used again
			n.runAgent()
			s := newSoak(n, c.sources)
			permanent := n.runSome("permanent", 2) // their entries prove the cache during the whole test
			length := *soakFor
			if testing.Short() {
				length = 10 * time.Second
			}
			began := time.Now()
			s.load(length)
			for !t.Failed() && len(otherContainers(n.reservations(), permanent...)) > 0 {
				if s.pass(); time.Since(began) > length+2*maxWait {
					t.Errorf("leaks are still kept: %v", n.reservations())
				}
			}
			n.wantLeft(c.reason, permanent...)
			t.Logf("%v on %s: %v; a pass took %v at most, all %v", c.sources, n.name, s.counts, s.longest, time.Since(began).Round(time.Second))
			if n.name == current().name && s.counts["released"] == 0 || !s.complete() { // 1.6 lists what failed, so a later DEL frees it
				t.Error("the test shows nothing: nothing was released, or some kind of pod is missing")
			}
		})
	}
}

// A soak is a node with pods that start and stop, and a reconciler.
type soak struct {
	n          *node
	seconds    bool
	reconciler *gc.Reconciler
	epoch      atomic.Int64 // incremented when containerd is killed, and when it runs again; odd while it does not run
	longest    time.Duration

	mu       sync.Mutex
	holders  map[netip.Addr]string // containers from the end of RunPodSandbox to the start of StopPodSandbox
	released map[string]bool       // containers with a released reservation
	counts   map[string]int
}

func newSoak(n *node, sources []string) *soak {
	n.t.Helper()
	s := &soak{n: n, seconds: len(sources) > 1, holders: make(map[netip.Addr]string), released: make(map[string]bool), counts: make(map[string]int)}
	runtime, err := cri.New(n.endpoint(), cri.Options{})
	n.must(err)
	kernel, err := netns.New(netns.Options{Nested: true})
	n.must(err)
	cache, err := cnicache.New(cnicache.Options{Living: kernel.Living})
	n.must(err)
	var members []podsource.Source
	for _, name := range sources {
		members = append(members, map[string]podsource.Source{"cri": runtime, "netns": kernel, "cnicache": cache}[name])
	}
	opts := gc.Options{SourceTimeout: maxWait}
	if s.seconds {
		opts.MinAge = secondsAge
	}
	s.reconciler, err = gc.New(hostlocal.New(""), []string{n.network}, podsource.Union(members...), opts)
	n.must(err)
	return s
}

// complete reports whether there was each kind of pod, which takes longer than -short on a busy machine.
func (s *soak) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts["pods"] > 0 && s.counts["leaks"] > 0 && (s.counts["slow pods"] > 0 || !s.seconds)
}

func (s *soak) count(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[kind]++
}

// load starts and stops pods for the given time, while passes run.
func (s *soak) load(length time.Duration) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.n.t.Context(), length)
	defer cancel()
	var working, collecting sync.WaitGroup
	defer collecting.Wait()
	passes, stop := context.WithCancel(s.n.t.Context())
	defer stop()
	collecting.Go(func() {
		for passes.Err() == nil {
			s.pass()
		}
	})
	for i := range 8 {
		working.Go(func() {
			for round := 0; (ctx.Err() == nil || !s.complete() && time.Since(began) < length+2*maxWait) && !s.n.t.Failed(); round++ {
				name := fmt.Sprintf("web-%d-%d", i, round)
				switch {
				case i == 0:
					s.leak(name)
				case i < 3 || !s.seconds:
					s.run(name, rand.N(300*time.Millisecond))
				case i < 5:
					s.run(name, secondsAge+rand.N(5*time.Second))
				default:
					s.slow(i, name)
				}
			}
		})
	}
	for tick := time.Tick(min(20*time.Second, length/2)); s.seconds && ctx.Err() == nil; {
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
	working.Wait()
}

// slow runs a pod whose start takes longer than the minimum age.
func (s *soak) slow(i int, name string) {
	const long = "sleep 20s"
	orders := map[int][]string{
		5: {"START", "20s"},
		6: {[]string{"ADD", "lease-ADD"}[rand.N(2)], long}, // after the address is configured, or before: then only the process shows it
		7: {"lease-ADD", "sleep 4s", "ADD", "sleep 4s", "chained-ADD", "sleep 4s"},
	}[i]
	for order := range slices.Chunk(orders, 2) {
		s.check(s.n.order(order[0], name, order[1]))
	}
	if s.run(name, secondsAge) {
		s.count("slow pods")
	}
}

// check fails the test on an error, from any goroutine.
func (s *soak) check(err error) {
	s.n.t.Helper()
	if err != nil {
		s.n.t.Error(err)
	}
}

// run runs a pod, checks its reservations for the given time, and removes it.
func (s *soak) run(name string, length time.Duration) bool {
	defer s.abandon(name)
	p, ok := s.start(name)
	if !ok {
		return false
	}
	s.count("pods")
	s.mu.Lock()
	if s.released[p.id] || len(p.ips) != 2 {
		s.n.t.Errorf("something of %v was released while it was starting, or it lacks an address", p)
	}
	for _, ip := range p.ips {
		if holder := s.holders[ip]; holder != "" {
			s.n.t.Errorf("%s was given to %v, and %s holds it", ip, p, holder)
		}
		s.holders[ip] = p.id
	}
	s.mu.Unlock()
	if !s.seconds {
		s.check(s.n.stamp(time.Hour, p.ips...)) // RunPodSandbox has returned, but the list is a little late
	}
	for end := time.Now().Add(length); ; {
		s.holds(p)
		if time.Now().After(end) {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	s.mu.Lock()
	maps.DeleteFunc(s.holders, func(_ netip.Addr, id string) bool { return id == p.id })
	s.mu.Unlock()
	return true
}

// start runs a pod. It may lack an address, or be interrupted by a kill.
func (s *soak) start(name string) (pod, bool) {
	epoch := s.awaitContainerd()
	p, err := s.n.tryRun(s.n.t.Context(), name)
	if err == nil && !s.seconds {
		err = eventually(func() error {
			answer, err := s.n.cri.ListPodSandbox(s.n.t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: p.id}})
			if err == nil && len(answer.GetItems()) == 0 {
				err = errors.New("it is not listed")
			}
			return err
		})
	}
	if err != nil && !strings.Contains(err.Error(), noAddress) && !strings.Contains(err.Error(), toldToFail) && s.epoch.Load() == epoch {
		s.n.t.Errorf("pod %s: %v", name, err)
	}
	return p, err == nil && s.epoch.Load() == epoch
}

// leak runs a pod with a plugin that fails in ADD and in DEL.
func (s *soak) leak(name string) {
	prefix := []string{"", "chained-"}[rand.N(2)]
	s.check(errors.Join(s.n.order(prefix+"ADD", name, "fail"), s.n.order(prefix+"DEL", name, "fail")))
	if p, ok := s.start(name); ok {
		s.n.t.Errorf("%v did not fail", p)
	}
	id, err := os.ReadFile(s.n.path("control/container." + name)) // written by the plugin that failed
	s.check(ignoreGone(errors.Join(err, os.Remove(s.n.path("control/"+prefix+"DEL."+name)))))
	reserved, err := hostlocal.New("").List(s.n.t.Context())
	s.check(err)
	for _, r := range reserved.Reservations {
		if r.ContainerID == string(id) && !s.seconds {
			s.check(s.n.stamp(time.Hour, r.IP))
		}
	}
	if len(id) > 0 {
		s.count("leaks")
	}
	s.abandon(name)
}

// holds checks that a pod's addresses are reserved for it.
func (s *soak) holds(p pod) {
	for _, ip := range p.ips {
		content, err := os.ReadFile(s.n.reservationFile(ip))
		if owner, _, _ := strings.Cut(string(content), "\r\n"); err != nil || owner != p.id {
			s.n.t.Errorf("the reservation of %s of live pod %v has %q, %v", ip, p, content, err)
		}
	}
}

// abandon removes the sandboxes of a pod, also if containerd is killed meanwhile.
func (s *soak) abandon(name string) {
	for {
		epoch := s.awaitContainerd()
		answer, err := s.n.cri.ListPodSandbox(s.n.t.Context(), &runtimeapi.ListPodSandboxRequest{})
		for _, sandbox := range answer.GetItems() {
			if sandbox.GetMetadata().GetName() == name {
				err = errors.Join(err, s.n.tryRemove(s.n.t.Context(), sandbox.GetId()))
			}
		}
		if err == nil {
			return
		}
		if s.epoch.Load() == epoch {
			s.n.t.Errorf("removing pod %s: %v", name, err)
			return
		}
	}
}

// awaitContainerd waits until containerd runs, and returns the epoch.
func (s *soak) awaitContainerd() (epoch int64) {
	s.check(eventually(func() error {
		if epoch = s.epoch.Load(); epoch%2 == 1 {
			return errors.New("containerd does not run")
		}
		return nil
	}))
	return epoch
}

// pass runs a pass, and checks that it releases nothing of a live pod.
func (s *soak) pass() {
	began, epoch := time.Now(), s.epoch.Load()
	report, err := s.reconciler.Reconcile(context.WithoutCancel(s.n.t.Context()))
	s.longest = max(s.longest, time.Since(began).Round(time.Millisecond))
	if err != nil && (!errors.Is(err, gc.ErrRefused) || epoch%2 == 0 && s.epoch.Load() == epoch) {
		s.n.t.Errorf("pass: %v", err)
	}
	s.count("passes")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range report.Reservations {
		if e.Verdict != gc.Released {
			continue
		}
		if slices.Contains(slices.Collect(maps.Values(s.holders)), e.ContainerID) {
			s.n.t.Errorf("%s of live container %s was released", e.IP, e.ContainerID)
		}
		s.released[e.ContainerID] = true
		s.counts["released"]++
	}
}
