// SPDX-License-Identifier: Apache-2.0

//go:build unix

package agent

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
	killed    = 50  // how often the agent is killed
	permanent = 8   // containers that live through the test
	temporary = 4   // concurrent containers that start and end
	lost      = 200 // leaks before each start of the agent
)

// A crowd is the containers of a node. Its list of pods has a container as starting before its ADD
// begins, and names the container before the reservation is dated back. So the list is true at any
// time, however slow the machine is (A2, A3), and from then on only the list keeps the address.
type crowd struct {
	t    *testing.T
	p    *plugintest.Plugin
	path string // path of the list of pods

	mu   sync.Mutex // guards the fields below
	live map[string]pod
	held map[netip.Addr]string // addresses between the end of their ADD and the beginning of their DEL
	adds int
	left int // number of leaks
}

// update writes the list with a changed entry for a container.
func (c *crowd) update(id string, p *pod) {
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

// arrive adds a container with ADD.
func (c *crowd) arrive(id string) (netip.Addr, bool) {
	// A file's timestamp may be a kernel tick behind the clock.
	c.update(id, &pod{Name: id, StartedAt: time.Now().Add(-time.Second)})
	ips, err := c.p.Add(c.t.Context(), sandbox(id), "eth0")
	if err != nil {
		c.update(id, nil)
		if !strings.Contains(err.Error(), "no IP addresses available") {
			c.t.Error(err)
		}
		return netip.Addr{}, false
	}
	c.update(id, &pod{Name: id, ContainerIDs: []string{id}})
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(c.p.File(ips[0]), at, at); err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adds++
	if other := c.held[ips[0]]; other != "" {
		c.t.Errorf("%v was given to %s while %s has it", ips[0], id, other)
	}
	c.held[ips[0]] = id
	return ips[0], true
}

// leave ends a container, with or without DEL.
func (c *crowd) leave(id string, ip netip.Addr, leak bool) {
	c.mu.Lock()
	delete(c.held, ip)
	if leak {
		c.left++
	}
	c.mu.Unlock()
	if !leak {
		if err := c.p.Del(c.t.Context(), sandbox(id), "eth0"); err != nil {
			c.t.Error(err)
		}
	}
	c.update(id, nil)
}

// check fails the test if a live container lost its address.
func (c *crowd) check(id string, ip netip.Addr) {
	content, err := os.ReadFile(c.p.File(ip))
	if want := sandbox(id) + "\r\neth0"; err != nil || string(content) != want {
		c.t.Errorf("%v of live container %s holds %q, %v", ip, id, content, err)
	}
}

// come starts and ends containers until ctx ends. Some end without DEL.
func (c *crowd) come(ctx context.Context, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("guest-%d-%d", worker, i)
		ip, ok := c.arrive(id)
		over := time.NewTimer(rand.N(100 * time.Millisecond))
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

// lose writes leaked reservations outside of the plugin's range, and returns their files.
func (c *crowd) lose(life int) (files []string) {
	at := time.Now().Add(-time.Hour)
	for i := range lost {
		file := c.p.File(netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}))
		err := os.WriteFile(file, []byte(sandbox(fmt.Sprintf("lost-%d-%d", life, i))+"\r\neth0"), 0o600)
		if err == nil {
			err = os.Chtimes(file, at, at)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// The agent is terminated and killed at random times, also while it releases, beside ADDs and DELs
// of the plugin. No live container loses its address, no release is partial, and the last agent
// releases what the others left.
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
	for i := range permanent {
		id := fmt.Sprintf("resident-%d", i)
		ip, _ := c.arrive(id)
		lives[ip.String()] = sandbox(id) + "\r\neth0"
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for w := range temporary {
		working.Go(func() { c.come(ctx, w) })
	}
	t.Cleanup(func() { // also if the test failed
		cancel()
		working.Wait()
	})

	args := []string{"--data-dir", n.DataDir, "--network", "podnet", "--source", "file:" + c.path, "--interval", "1s", "-v", "0"}
	inTheMiddle, longest := 0, time.Duration(0)
	for i := range times {
		files := c.lose(i)
		p := start(t, nil, args...)
		if random.IntN(2) == 0 {
			p.untilGone(files[0])
		} else {
			p.wait(time.Duration(random.Int64N(int64(250 * time.Millisecond))))
		}
		if i%2 == 0 {
			longest = max(longest, p.terminate())
		} else {
			p.end(syscall.SIGKILL)
		}
		left := slices.DeleteFunc(files, func(f string) bool { return !exists(f) })
		if len(left) > 0 && len(left) < lost {
			inTheMiddle++
		}
		if strings.Contains(p.log.String(), "DATA RACE") || strings.Contains(p.log.String(), "panic") {
			t.Fatal(p.log)
		}
	}
	cancel()
	working.Wait()

	p := start(t, nil, args...)
	p.eventually("nothing is left that leaked", func() bool { return cmp.Equal(lives, reserved(t, n)) })
	took := p.terminate()
	// The lock is free, too: the plugin would wait for it for ever.
	bound, cancelBound := context.WithTimeout(t.Context(), patience)
	defer cancelBound()
	if _, err := n.Add(bound, "last", "eth0"); err != nil {
		t.Error(err)
	}
	if c.left == 0 {
		t.Error("the test is of no use: no container left without a DEL")
	}
	fmt.Printf("Killed %d times beside %d ADDs, %d times in the middle of the releases; %d containers left without a DEL. After SIGTERM it took %v at most, and %v in the end\n",
		times, c.adds, inTheMiddle, c.left, longest.Round(time.Millisecond), took.Round(time.Millisecond))
}

// untilGone waits until the agent has released a file.
func (p *process) untilGone(file string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for exists(file) { // without a pause, to kill the agent between two releases
		select {
		case <-p.ended:
			p.t.Fatalf("the agent ended by itself: %v\n%s", p.cmd.ProcessState, p.log)
		case <-ctx.Done():
			p.t.Fatalf("%s is not released\n%s", file, p.log)
		default:
		}
	}
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// wait waits while the agent works.
func (p *process) wait(d time.Duration) {
	p.t.Helper()
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-p.ended:
		p.t.Fatalf("the agent ended by itself: %v\n%s", p.cmd.ProcessState, p.log)
	}
}

// reserved returns the network's files, except the plugin's own, with their content. A file that is
// no reservation would be a trace of a partial release.
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
