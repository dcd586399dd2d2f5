// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A stress has the truth without a delay, and counts what happens.
type stress struct {
	t   *testing.T
	p   *plugintest.Plugin
	ctx context.Context // ends the plugin if the lock is held for ever

	mu      sync.Mutex
	live    map[string]*container
	holders map[netip.Addr]string // from the end of its ADD until its DEL begins
	leaked  map[string]bool       // "address container" -> whether it was released
	counts  map[string]int
}

func (s *stress) count(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[kind]++
	return s.counts[kind]
}

// wrong counts a violation, and reports the first ones.
func (s *stress) wrong(kind, format string, args ...any) {
	s.t.Helper()
	if s.count(kind) <= 5 {
		s.t.Errorf(kind+": "+format, args...)
	}
}

// publish replaces the file of the truth.
func (s *stress) publish(path string) error {
	s.mu.Lock()
	now := truth{At: time.Now()}
	for id, r := range s.live {
		switch {
		case !r.gone.IsZero() && !now.At.Before(r.gone):
			delete(s.live, id)
		case !now.At.Before(r.shown):
			shown := *r
			if r.status.IsZero() || now.At.Before(r.status) {
				shown.IP = netip.Addr{}
			}
			now.Live = append(now.Live, shown)
		}
	}
	s.mu.Unlock()
	content, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// begin, took and end note changes of a container, which the truth shows with a delay. Its
// address is sometimes later than MinAge. Until then the container is starting (R4).
func (s *stress) begin(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.live[id] = &container{ID: id, Since: now, shown: now.Add(rand.N(stressLate))}
}

func (s *stress) took(id string, ips []netip.Addr) {
	late := stressLate
	if rand.N(8) == 0 {
		late = 2 * stressMinAge
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.live[id]
	r.IP, r.status = ips[0], time.Now().Add(rand.N(late))
	for _, ip := range ips {
		if holder := s.holders[ip]; holder != "" {
			s.counts[heldTwice]++
			s.t.Errorf("%s: %s was given to %s, and %s holds it", heldTwice, ip, id, holder)
		}
		s.holders[ip] = id
	}
}

func (s *stress) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[id].gone = time.Now().Add(rand.N(stressLate))
}

// leave notes that the container no longer needs its addresses, which others may get.
func (s *stress) leave(id string, ips []netip.Addr, leak bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ip := range ips {
		if s.holders[ip] == id {
			delete(s.holders, ip)
		}
		if leak {
			s.leaked[ip.String()+" "+id] = false
		}
	}
}

// holds reports whether the container has all its addresses.
func (s *stress) holds(id string, ips []netip.Addr) bool {
	all := true
	for _, ip := range ips {
		content, err := os.ReadFile(s.p.File(ip))
		if err != nil || string(content) != id+"\r\neth0" {
			s.wrong(liveReleased, "%s of live container %s holds %q, %v", ip, id, content, err)
			all = false
		}
	}
	return all
}

// round runs one container: its ADD, checks for some time, and perhaps a DEL.
func (s *stress) round(ctx context.Context, id string) {
	s.begin(id)
	defer s.end(id)
	ips, err := s.p.Add(s.ctx, id, "eth0")
	if err != nil {
		if strings.Contains(err.Error(), "no IP addresses available") {
			s.count("pool full")
		} else {
			s.wrong(pluginError, "%v", err)
		}
		return
	}
	s.count("ADDs")
	age(s.t, s.p, stressAged, ips...)
	s.took(id, ips)
	held := rand.N(300 * time.Millisecond)
	if rand.N(4) == 0 { // before MinAge its age keeps it, whatever the truth shows
		held = stressMinAge + rand.N(stressMinAge)
	}
	hold, cancel := context.WithTimeout(ctx, held)
	defer cancel()
	for s.holds(id, ips) && hold.Err() == nil {
		if err := s.p.Check(s.ctx, id, "eth0"); err != nil {
			s.wrong(pluginError, "%v", err)
		}
		select {
		case <-time.After(rand.N(200 * time.Millisecond)):
		case <-hold.Done():
		}
	}
	leak := rand.N(5) == 0
	s.leave(id, ips, leak)
	if leak {
		s.count("leaks")
		return
	}
	s.count("DELs")
	if err := s.p.Del(s.ctx, id, "eth0"); err != nil {
		s.wrong(pluginError, "%v", err)
	}
}

// The real plugin runs for minutes beside two collectors in processes of their own. Their
// sources show the truth with a delay: one names only container IDs, the other only the first
// of a container's three addresses. The first range is so small that leaks fill it.
func TestStress(t *testing.T) {
	if names := os.Getenv(stressEnv); names != "" {
		collect(t, names)
		return
	}
	p := plugintest.New(t, "podnet",
		plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.15"},
		plugintest.Range{Subnet: "10.2.0.0/24", Start: "10.2.0.2", End: "10.2.0.33"},
		plugintest.Range{Subnet: "fd00:1::/64", Start: "fd00:1::2", End: "fd00:1::21"})
	s := &stress{
		t: t, p: p, live: make(map[string]*container), holders: make(map[netip.Addr]string), leaked: make(map[string]bool),
		counts: map[string]int{"pool full": 0, liveReleased: 0, heldTwice: 0, pluginError: 0, collectorError: 0, leakLeft: 0},
	}
	path := filepath.Join(t.TempDir(), "truth")
	if err := s.publish(path); err != nil {
		t.Fatal(err)
	}
	inBackground(t, func() {
		for tick := time.Tick(20 * time.Millisecond); ; {
			select {
			case <-t.Context().Done():
				return
			case <-tick:
				if err := s.publish(path); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	finish := make(map[string]func() collected)
	for _, names := range []string{byID, byAddress} {
		finish[names] = startCollector(t, p, path, names)
	}

	length := *stressFor
	if testing.Short() {
		length = 5 * time.Second
	}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(t.Context(), length+time.Minute)
	defer cancel()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var working sync.WaitGroup
	for w := range stressWorkers {
		working.Add(1)
		go func() {
			defer working.Done()
			for i := 0; ctx.Err() == nil; i++ {
				s.round(ctx, fmt.Sprintf("%d-%d", w, i))
			}
		}()
	}
	working.Wait()
	settled, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, tick := hostlocal.New(p.DataDir), time.Tick(20*time.Millisecond)
	for settled.Err() == nil {
		if left, err := store.List(settled); err == nil && len(left) == 0 {
			break
		}
		<-tick
	}

	for _, names := range []string{byID, byAddress} {
		did := finish[names]()
		s.counts["passes by "+names] = did.Passes
		s.counts["passes without an answer"] += did.Stale
		s.counts["released by "+names] = len(did.Released)
		for _, e := range did.Errors {
			s.wrong(collectorError, "collector by %s: %s", names, e)
		}
		if did.Passes <= did.Stale {
			t.Errorf("the collector by %s ran %d passes, %d of them without an answer", names, did.Passes, did.Stale)
		}
		for _, r := range did.Released {
			if before, leaked := s.leaked[r]; before || !leaked {
				s.wrong(liveReleased, "released %s; it was a leak: %t; it was released before: %t", r, leaked, before)
			}
			s.leaked[r] = true
		}
	}
	for r, released := range s.leaked {
		if !released {
			s.wrong(leakLeft, "no collector released %s", r)
		}
	}
	wantDiff(t, "disk", "all were deleted or leaked", map[string]string{}, reservations(t, p))
	line := fmt.Sprintf("Against the real plugin for %v: %d violations, in %v", length,
		s.counts[liveReleased]+s.counts[heldTwice]+s.counts[pluginError]+s.counts[collectorError]+s.counts[leakLeft], s.counts)
	fmt.Println(line)                                          // t.Log shows it only if the test fails
	if path := os.Getenv("HOSTLOCAL_GC_FIGURES"); path != "" { // .ci/run prints it at the end
		if err := os.WriteFile(path+".stress", []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
