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

// A stress is the truth, told at once, and what went wrong.
type stress struct {
	t   *testing.T
	p   *plugintest.Plugin
	ctx context.Context // ends the plugin where somebody keeps the lock for ever

	mu        sync.Mutex
	residents map[string]*resident
	holders   map[netip.Addr]string // from the end of its ADD until its DEL begins
	leaked    map[string]bool       // "address container" -> whether it was released
	counts    map[string]int
}

func (s *stress) count(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[kind]++
	return s.counts[kind]
}

// wrong counts a violation and tells of the first ones.
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
	for id, r := range s.residents {
		switch {
		case !r.gone.IsZero() && !now.At.Before(r.gone):
			delete(s.residents, id)
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

// begin, took and end are what the truth tells late of a container. Its address
// comes later than MinAge now and then: until then it is starting (R4).
func (s *stress) begin(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.residents[id] = &resident{ID: id, Since: now, shown: now.Add(rand.N(stressLate))}
}

func (s *stress) took(id string, ips []netip.Addr) {
	late := stressLate
	if rand.N(8) == 0 {
		late = 2 * stressMinAge
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.residents[id]
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
	s.residents[id].gone = time.Now().Add(rand.N(stressLate))
}

// leave gives the addresses up: from now on others may get them.
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

// round is the life of one container: ADD, some time in which it is looked at
// again and again, and a DEL or none.
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
	if rand.N(4) == 0 { // only what is older than MinAge needs the truth
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

// Minutes of the real plugin beside two collectors in processes of their own,
// which ask a source that tells the truth late. Of the three addresses of each
// container one collector's source knows none and the other's the first. The
// first range is so small that it runs full while leaks stay.
func TestStress(t *testing.T) {
	if knows := os.Getenv(stressEnv); knows != "" {
		collect(t, knows)
		return
	}
	p := plugintest.New(t, "podnet",
		plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.15"},
		plugintest.Range{Subnet: "10.2.0.0/24", Start: "10.2.0.2", End: "10.2.0.33"},
		plugintest.Range{Subnet: "fd00:1::/64", Start: "fd00:1::2", End: "fd00:1::21"})
	s := &stress{
		t: t, p: p, residents: make(map[string]*resident), holders: make(map[netip.Addr]string), leaked: make(map[string]bool),
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
	for _, knows := range []string{byID, byAddress} {
		finish[knows] = startCollector(t, p, path, knows)
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

	for _, knows := range []string{byID, byAddress} {
		did := finish[knows]()
		s.counts["passes by "+knows] = did.Passes
		s.counts["passes without an answer"] += did.Stale
		s.counts["released by "+knows] = len(did.Released)
		for _, e := range did.Errors {
			s.wrong(collectorError, "collector by %s: %s", knows, e)
		}
		if did.Passes <= did.Stale {
			t.Errorf("the collector by %s made %d passes, of which %d had no answer", knows, did.Passes, did.Stale)
		}
		for _, r := range did.Released {
			if before, leaked := s.leaked[r]; before || !leaked {
				s.wrong(liveReleased, "released %s, which was leaked: %t, and released before: %t", r, leaked, before)
			}
			s.leaked[r] = true
		}
	}
	for r, released := range s.leaked {
		if !released {
			s.wrong(leakLeft, "%s was released by no collector", r)
		}
	}
	wantDiff(t, "disk", "all were deleted or leaked", map[string]string{}, reservations(t, p))
	line := fmt.Sprintf("Against the real plugin for %v: %d violations, in %v", length,
		s.counts[liveReleased]+s.counts[heldTwice]+s.counts[pluginError]+s.counts[collectorError]+s.counts[leakLeft], s.counts)
	fmt.Println(line)                                          // a log is shown of failures only
	if path := os.Getenv("HOSTLOCAL_GC_FIGURES"); path != "" { // .ci/run prints it in the end
		if err := os.WriteFile(path+".stress", []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
