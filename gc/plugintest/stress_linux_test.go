// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var stressFor = flag.Duration("stress.for", time.Minute, "how long TestStress adds and deletes; 3s with -short")

const (
	stressWorkers = 12
	// The rest of the minimum age when an ADD has ended. Reservations and starts are set back
	// by stressAged, so that the test takes seconds and not minutes.
	stressMinAge = 2 * time.Second
	stressAged   = gc.DefaultMinAge - stressMinAge
	stressLate   = time.Second // how late sources may show a change: less than stressMinAge (A2)
)

// A stress knows all containers without a delay, and counts what happens.
type stress struct {
	t   *testing.T
	p   *plugintest.Plugin
	ctx context.Context // ends the plugin if the lock is held for ever

	mu     sync.Mutex
	live   map[string]*container
	leaked map[string]bool // "address container" -> whether it was released
	counts map[string]int
	wrongs int
}

// A container is one whose ADD has begun.
type container struct {
	since time.Time  // when its ADD began
	ip    netip.Addr // the first of its addresses, when it has them
	// From when on sources show it, its address, and that it is gone. Zero is unknown yet.
	shown, status, gone time.Time
}

// pods returns a source that shows containers with a delay. It names each by its container ID
// or by its first address. Before that is known, the container is starting (R4).
func (s *stress) pods(byAddress bool) podsource.Source {
	return podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		now := time.Now()
		past := func(at time.Time) bool { return !at.IsZero() && !now.Before(at) }
		pods := []podsource.Pod{someone}
		for id, c := range s.live {
			switch {
			case past(c.gone):
				delete(s.live, id)
			case !past(c.shown):
			case !byAddress:
				pods = append(pods, podsource.Pod{ContainerIDs: []string{id}})
			case past(c.status):
				pods = append(pods, podsource.Pod{IPs: []netip.Addr{c.ip}})
			default:
				pods = append(pods, podsource.Pod{StartedAt: c.since.Add(-stressAged)})
			}
		}
		return pods, nil
	})
}

// collect runs passes back to back until ctx ends, and counts what they release. It returns
// how many passes ran.
func (s *stress) collect(ctx context.Context, r *gc.Reconciler, byAddress bool) (passes int) {
	for ; ctx.Err() == nil; passes++ {
		report, err := r.Reconcile(s.ctx)
		if err != nil {
			s.wrong("pass: %v", err)
		}
		for _, e := range report.Reservations {
			switch e.Verdict {
			case gc.Released:
				key := e.IP.String() + " " + e.ContainerID
				s.note(fmt.Sprintf("released by address: %t", byAddress), func() {
					if before, leaked := s.leaked[key]; before || !leaked {
						s.wrongs++
						s.t.Errorf("released %s; it was a leak: %t; it was released before: %t", key, leaked, before)
					}
					s.leaked[key] = true
				})
			case gc.Failed, gc.Malformed:
				s.wrong("%s of %s: %s (%s), %v", e.IP, e.ContainerID, e.Verdict, e.Reason, e.Err)
			}
		}
	}
	return passes
}

// note counts an event, and changes what s knows.
func (s *stress) note(event string, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[event]++
	change()
}

// wrong counts a violation, and reports the first ones.
func (s *stress) wrong(format string, args ...any) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrongs++; s.wrongs <= 9 {
		s.t.Errorf(format, args...)
	}
}

// holds reports whether the container has all its addresses.
func (s *stress) holds(id string, ips []netip.Addr) bool {
	for _, ip := range ips {
		content, err := os.ReadFile(s.p.File(ip))
		if err != nil || string(content) != id+"\r\neth0" {
			s.wrong("%s of live container %s holds %q, %v", ip, id, content, err)
			return false
		}
	}
	return true
}

// round runs one container: its ADD, checks until ctx ends or for some time, and perhaps a DEL.
func (s *stress) round(ctx context.Context, id string) {
	now := time.Now()
	c := &container{since: now, shown: now.Add(rand.N(stressLate))}
	s.note("containers", func() { s.live[id] = c })
	defer s.note("ended", func() { c.gone = time.Now().Add(rand.N(stressLate)) })
	ips, err := s.p.Add(s.ctx, id, "eth0")
	if err != nil {
		if !strings.Contains(err.Error(), poolFull) {
			s.wrong("%v", err)
		}
		return
	}
	age(s.t, s.p, stressAged, ips...)
	late, held := stressLate, rand.N(300*time.Millisecond)
	if rand.N(8) == 0 { // later than MinAge
		late = 2 * stressMinAge
	}
	if rand.N(4) == 0 { // before MinAge its age keeps it, whatever the sources show
		held = stressMinAge + rand.N(stressMinAge)
	}
	s.note("ADDs", func() { c.ip, c.status = ips[0], time.Now().Add(rand.N(late)) })
	hold, cancel := context.WithTimeout(ctx, held)
	defer cancel()
	for s.holds(id, ips) && hold.Err() == nil {
		if err := s.p.Check(s.ctx, id, "eth0"); err != nil {
			s.wrong("%v", err)
		}
		select {
		case <-time.After(rand.N(200 * time.Millisecond)):
		case <-hold.Done():
		}
	}
	if rand.N(5) == 0 {
		s.note("leaks", func() {
			for _, ip := range ips {
				s.leaked[ip.String()+" "+id] = false
			}
		})
	} else if err := s.p.Del(s.ctx, id, "eth0"); err != nil {
		s.wrong("%v", err)
	}
}

// The real plugin runs for minutes beside two collectors, whose sources show containers with a
// delay: one names only container IDs, the other only the first of a container's three
// addresses. The first range is so small that leaks fill it.
func TestStress(t *testing.T) {
	length := *stressFor
	if testing.Short() {
		length = 3 * time.Second
	}
	bounded, cancel := context.WithTimeout(t.Context(), length+2*time.Minute)
	defer cancel()
	p := plugintest.New(t, "podnet",
		plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.15"},
		plugintest.Range{Subnet: "10.2.0.0/24", Start: "10.2.0.2", End: "10.2.0.33"},
		plugintest.Range{Subnet: "fd00:1::/64", Start: "fd00:1::2", End: "fd00:1::21"})
	s := &stress{t: t, p: p, ctx: bounded,
		live: make(map[string]*container), leaked: make(map[string]bool), counts: make(map[string]int)}
	collecting, stop := context.WithCancel(bounded)
	defer stop()
	byID, byAddress := reconcilerOf(t, p, s.pods(false), gc.Options{}), reconcilerOf(t, p, s.pods(true), gc.Options{})
	var passes [2]int
	collectors := []<-chan struct{}{
		inBackground(t, func() { passes[0] = s.collect(collecting, byID, false) }),
		inBackground(t, func() { passes[1] = s.collect(collecting, byAddress, true) }),
	}
	adding, cancel := context.WithTimeout(bounded, length)
	defer cancel()
	var working sync.WaitGroup
	for w := range stressWorkers {
		working.Add(1)
		go func() {
			defer working.Done()
			for i := 0; adding.Err() == nil; i++ {
				s.round(adding, fmt.Sprintf("%d-%d", w, i))
			}
		}()
	}
	working.Wait()
	store := hostlocal.New(p.DataDir)
	for settled := time.Tick(20 * time.Millisecond); bounded.Err() == nil; <-settled {
		if left, err := store.List(bounded); err == nil && len(left.Reservations) == 0 {
			break
		}
	}
	stop()
	for _, ended := range collectors {
		<-ended
	}
	for r, released := range s.leaked {
		if !released {
			s.wrong("no collector released %s", r)
		}
	}
	wantDiff(t, "disk", "all were deleted or leaked", map[string]string{}, reservations(t, p))
	// t.Log shows it only if the test fails.
	fmt.Printf("Against the real plugin for %v: %d violations in %d passes, %v\n", length, s.wrongs, passes, s.counts)
}
