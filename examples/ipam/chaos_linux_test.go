// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

var (
	chaosFor  = flag.Duration("chaos", 20*time.Second, "how long TestChaos runs, at least")
	chaosSeed = flag.Uint64("chaos.seed", 0, "seed of TestChaos; 0 is a random one")
)

const (
	chaosWorkers = 20
	// graceOfFailure is how much older than the minimum age a leak may be when an ADD finds no
	// address: the time that a pass may take.
	graceOfFailure = treatTime
)

// A chaos is a network whose runtimes lose a tenth of their DELs, and whose plugins are killed.
type chaos struct {
	*testNode
	mu     sync.Mutex
	held   map[netip.Addr]string // addresses of live containers
	died   map[string]time.Time
	ops    int
	failed map[string]int // failed ADDs by reason
	passes map[string]int // passes by minimum age
}

// TestChaos lets twenty workers add and delete containers on a leaking /24. No address is held
// twice, and no live container loses its address. An ADD finds no address only if no leak is older
// than the minimum age of its pass and twelve seconds.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	c := &chaos{testNode: newTestNode(t), held: make(map[netip.Addr]string), died: make(map[string]time.Time),
		failed: make(map[string]int), passes: make(map[string]int)}
	blocked := 0
	if *chaosFor < 5*time.Minute {
		blocked = 170 // few enough free addresses that the network is often full
	}
	c.fill(blocked, rand.New(rand.NewPCG(seed, 0)))
	end := time.Now().Add(*chaosFor)
	var workers, killer sync.WaitGroup
	stop := make(chan struct{})
	killer.Go(func() { c.killPlugins(rand.New(rand.NewPCG(seed, 1)), stop) })
	for w := range chaosWorkers {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)+2))
			// On a busy machine the network is first full after that time.
			for i := 0; (time.Now().Before(end) || !c.passed()) && !t.Failed(); i++ {
				c.container(fmt.Sprintf("w%d-%d", w, i), rng)
			}
		})
	}
	workers.Wait()
	close(stop)
	killer.Wait()
	cnitest.Until(t, "the children of killed plugins have ended", func() bool { return len(plugins(t)) == 0 })
	all := 0
	for _, found := range passAge.FindAllStringSubmatch(c.log.String(), -1) { // passes that released something
		c.passes[found[1]]++
	}
	for _, count := range c.passes {
		all += count
	}
	t.Logf("%d operations succeeded in %v, %d passes, by their minimum age: %v; failed ADDs: %v", c.ops, *chaosFor, all, c.passes, c.failed)
	if short := c.passes[shortAge.String()]; all >= 20 && short < all*9/10 {
		t.Errorf("%d of %d passes had the short minimum age, want nine in ten", short, all)
	}
	reserved := c.reserved()
	for i := range blocked {
		if id := reserved[address(i)]; id != fmt.Sprint("blocker", i) {
			t.Errorf("%s was released, and is reserved for %q", address(i), id)
		}
	}
}

// passed reports whether a pass was noted.
func (c *chaos) passed() bool {
	info, err := os.Stat(c.noteFile())
	return err == nil && info.Size() > 0
}

// fill leaves few addresses free. Some are held throughout the test, by containers that only
// libcni's cache knows. The others leaked within the last twenty minutes, with the records that
// libcni has then.
func (c *chaos) fill(blocked int, rng *rand.Rand) {
	c.Make("blocker")
	for i := range addresses - chaosWorkers {
		age := time.Duration(rng.IntN(1200)) * time.Second
		id, netNS := sandbox(fmt.Sprint("gone", i)), "/run/netns/gone"
		if i < blocked {
			id, netNS, age = fmt.Sprint("blocker", i), "/run/netns/blocker", 2*old
		} else {
			c.died[id] = time.Now().Add(-age)
		}
		c.reserve(address(i), id, age)
		c.record(id, netNS, age)
	}
}

// container runs the life of a container: ADD, a check of its address, and its end, which one time
// in ten happens without DEL.
func (c *chaos) container(id string, rng *rand.Rand) {
	c.Make(id)
	begun := time.Now()
	ip, err := c.addOnce(c.of(id), "hostlocal-gc-ipam")
	if err != nil {
		c.judge(id, begun, err)
	} else {
		c.mu.Lock()
		c.ops++
		if other := c.held[ip]; other != "" {
			c.t.Errorf("%v was given to %s, and %s has it", ip, id, other)
		}
		c.held[ip] = id
		c.mu.Unlock()
		for range rng.IntN(3) { // its lifetime
			c.keeps(map[string]netip.Addr{id: ip})
		}
		c.keeps(map[string]netip.Addr{id: ip})
		c.mu.Lock()
		delete(c.held, ip)
		c.mu.Unlock()
	}
	leaks := rng.IntN(10) == 0
	if !leaks && c.del(id) == nil {
		c.mu.Lock()
		c.ops++
		c.mu.Unlock()
	}
	c.Remove(id)
	c.mu.Lock()
	c.died[id] = time.Now()
	c.mu.Unlock()
}

var passAge = regexp.MustCompile(`minimum age of ([0-9hms.]+)`)

// judge checks a failed ADD. A killed plugin is no fault, nor is an ADD that lacked time on a busy
// machine. A full range is one if the pass had to release some leak.
func (c *chaos) judge(id string, begun time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !strings.Contains(err.Error(), noneLeft) {
		c.failed["killed, or its parent was"]++
		// A plugin that is killed after printing its result fails with an empty message. One that
		// is killed before fails with its stderr.
		if !strings.HasSuffix(err.Error(), "(add): ") && !strings.Contains(err.Error(), "netplugin failed: ") && !strings.Contains(err.Error(), "killed") && !strings.Contains(err.Error(), "has ended") && !strings.Contains(err.Error(), "no error message") {
			c.t.Errorf("ADD of %s: %v", id, err)
		}
		return
	}
	if lackedTime(err) {
		c.failed["lacked time"]++
		return
	}
	c.failed["no address"]++
	minAge := shortAge
	if found := passAge.FindStringSubmatch(err.Error()); found != nil {
		if !strings.Contains(err.Error(), "another ADD's answer") {
			c.passes[found[1]]++
		}
		var wrong error
		if minAge, wrong = time.ParseDuration(found[1]); wrong != nil {
			c.t.Error(wrong)
		}
	} else {
		c.t.Logf("ADD of %s, after %v: %v", id, time.Since(begun).Round(time.Millisecond), err)
	}
	limit := begun.Add(-minAge - graceOfFailure)
	for ip, owner := range c.reserved() {
		died, ok := c.died[owner]
		info, statErr := os.Stat(c.file(ip))
		if ok && statErr == nil && info.ModTime().Before(limit) && died.Before(begun.Add(-graceOfFailure)) {
			c.t.Errorf("ADD of %s found no address, and %s leaked: reserved %v ago, its container %s ended %v ago: %v",
				id, ip, time.Since(info.ModTime()), owner, time.Since(died), err)
			return
		}
	}
}

// killPlugins kills one plugin after the other, at random.
func (c *chaos) killPlugins(rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.IntN(2000)) * time.Millisecond):
		}
		if running := plugins(c.t); len(running) > 0 {
			_ = syscall.Kill(running[rng.IntN(len(running))], syscall.SIGKILL) // may have ended
		}
	}
}

// plugins returns the processes of plugins.
func plugins(t testing.TB) (pids []int) {
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Error(err)
	}
	for _, program := range programs {
		to, err := os.Readlink(program)
		pid, numberErr := strconv.Atoi(strings.Split(program, "/")[2])
		if err == nil && numberErr == nil && filepath.Dir(to) == bin {
			pids = append(pids, pid)
		}
	}
	return pids
}
