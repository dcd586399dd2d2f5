// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

const (
	killed     = 50 // times
	killMinAge = time.Second
	residents  = 8 // containers that live all the time
	guests     = 4 // at once, of those that come and go
)

// A crowd is the containers of a node. It says of each that it is starting
// before its ADD begins, and names it before that counts: so the list of pods is
// true at every moment, however slow the machine is (A2, A3).
type crowd struct {
	t    *testing.T
	p    *plugintest.Plugin
	path string // of the list

	mu   sync.Mutex // guards what follows
	live map[string]pod
	held map[netip.Addr]string // from the end of its ADD to the beginning of its DEL
	adds int
	left int // leaks
}

// tell changes what the list says of a container, and writes it.
func (c *crowd) tell(id string, p *pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, id)
	if p != nil {
		c.live[id] = *p
	}
	pods := slices.Collect(maps.Values(c.live))
	if err := replacePods(c.path, append(pods, pod{Name: "else", ContainerIDs: []string{"else"}})); err != nil {
		c.t.Error(err)
	}
}

// arrive is an ADD.
func (c *crowd) arrive(id string) (netip.Addr, bool) {
	// The kernel's time of a file is behind by up to a tick.
	c.tell(id, &pod{Name: id, StartedAt: time.Now().Add(-time.Second)})
	ips, err := c.p.Add(c.t.Context(), id, "eth0")
	if err != nil {
		c.tell(id, nil)
		if !strings.Contains(err.Error(), "no IP addresses available") {
			c.t.Error(err)
		}
		return netip.Addr{}, false
	}
	c.tell(id, &pod{Name: id, ContainerIDs: []string{id}})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adds++
	if other := c.held[ips[0]]; other != "" {
		c.t.Errorf("%v was given to %s while %s has it", ips[0], id, other)
	}
	c.held[ips[0]] = id
	return ips[0], true
}

// leave is a DEL, or the lack of one.
func (c *crowd) leave(id string, ip netip.Addr, leak bool) {
	c.mu.Lock()
	delete(c.held, ip)
	if leak {
		c.left++
	}
	c.mu.Unlock()
	if !leak {
		if err := c.p.Del(c.t.Context(), id, "eth0"); err != nil {
			c.t.Error(err)
		}
	}
	c.tell(id, nil)
}

// check sees whether a live container has its address.
func (c *crowd) check(id string, ip netip.Addr) {
	content, err := os.ReadFile(c.p.File(ip))
	if want := id + "\r\neth0"; err != nil || string(content) != want {
		c.t.Errorf("%v of live container %s holds %q, %v", ip, id, content, err)
	}
}

// come and go until ctx ends. Some stay for longer than the minimum age, and
// some leave without a DEL.
func (c *crowd) come(ctx context.Context, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("guest-%d-%d", worker, i)
		ip, ok := c.arrive(id)
		stay := rand.N(100 * time.Millisecond)
		if rand.N(8) == 0 {
			stay = killMinAge + rand.N(killMinAge)
		}
		over := time.NewTimer(stay)
		select {
		case <-over.C:
		case <-ctx.Done():
			over.Stop()
		}
		if ok {
			c.check(id, ip)
			c.leave(id, ip, rand.N(2) == 0)
		}
	}
}

// The agent is ended and killed at random moments, while the plugin's ADD and
// DEL go on beside it. No live container loses its address, nothing is half
// released, and the last agent finishes what those before it have left.
func TestKilled(t *testing.T) {
	seed := rand.Uint64()
	fmt.Printf("The moments of the killings are of seed %d\n", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	times := killed
	if testing.Short() {
		times = 10
	}
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.129"})
	c := &crowd{t: t, p: n, path: filepath.Join(t.TempDir(), "pods.json"), live: make(map[string]pod), held: make(map[netip.Addr]string)}
	lives := make(map[string]string)
	for i := range residents {
		id := fmt.Sprintf("resident-%d", i)
		ip, _ := c.arrive(id)
		date(t, n, ip, time.Hour)
		lives[ip.String()] = id + "\r\neth0"
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for w := range guests {
		working.Go(func() { c.come(ctx, w) })
	}
	t.Cleanup(func() { // also after a failure
		cancel()
		working.Wait()
	})

	args := []string{"--data-dir", n.DataDir, "--source", "file:" + c.path, "--min-age", killMinAge.String(), "--interval", "1s", "-v", "0"}
	released, longest := 0, time.Duration(0)
	for i := range times {
		p := start(t, nil, args...)
		p.address()
		p.passesFor(time.Duration(random.Int64N(int64(250 * time.Millisecond))))
		if i%2 == 0 {
			longest = max(longest, p.terminate())
		} else {
			p.end(syscall.SIGKILL)
		}
		released += strings.Count(p.log.String(), "Released a leaked reservation")
		if strings.Contains(p.log.String(), "DATA RACE") || strings.Contains(p.log.String(), "panic") {
			t.Fatal(p.log)
		}
	}
	cancel()
	working.Wait()
	byKilled := released

	p := start(t, nil, args...)
	p.eventually("nothing is left that leaked", func() bool { return cmp.Equal(lives, reserved(t, n)) })
	took := p.terminate()
	released += strings.Count(p.log.String(), "Released a leaked reservation")
	// Not even the lock is: the plugin would wait for it for ever.
	bound, cancelBound := context.WithTimeout(t.Context(), patience)
	defer cancelBound()
	if _, err := n.Add(bound, "last", "eth0"); err != nil {
		t.Error(err)
	}
	if byKilled == 0 {
		t.Errorf("the test is of no use: %d leaks, of which %d were released by agents that were killed", c.left, byKilled)
	}
	fmt.Printf("Killed %d times beside %d ADDs: %d leaks, of which %d were released before the last start and %d after it (a kill may come between a release and its log line). "+
		"After SIGTERM it took %v at most, and %v in the end\n",
		times, c.adds, c.left, byKilled, released-byKilled, longest.Round(time.Millisecond), took.Round(time.Millisecond))
}

// passesFor has the agent make passes back to back for a while.
func (p *process) passesFor(d time.Duration) {
	over, tick := time.NewTimer(d), time.NewTicker(3*time.Millisecond)
	defer over.Stop()
	defer tick.Stop()
	for {
		select {
		case <-over.C:
			return
		case <-p.ended:
			p.t.Fatalf("the agent ended by itself: %v\n%s", p.cmd.ProcessState, p.log)
		case <-tick.C:
			_ = p.cmd.Process.Signal(syscall.SIGHUP) // that it ended is seen above
		}
	}
}

// reserved returns all files of the network but the plugin's own, with what they
// hold. What is no reservation would be a trace of something half done.
func reserved(t *testing.T, p *plugintest.Plugin) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, e := range entries {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(p.Dir(), e.Name()))
		if os.IsNotExist(err) { // released meanwhile
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(content)
	}
	return out
}
