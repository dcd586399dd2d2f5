// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var (
	chaosFor  = flag.Duration("chaos", time.Minute, "how long TestChaos runs, at least")
	chaosSeed = flag.Uint64("chaos.seed", rand.Uint64(), "seed of TestChaos")
)

const (
	chaosWorkers = 20
	// grace is how much older than the minimum age a leak may be when an ADD finds no address: the
	// time that a pass may take on a busy machine, and until the doubt that a killed plugin makes ends.
	grace = 30 * time.Second
)

// A chaos is a network whose runtimes lose a tenth of their DELs, while plugins are killed, a person
// removes files of ended containers, an agent makes passes, and libcni's GC runs.
type chaos struct {
	*testNode
	adding       sync.RWMutex // a runtime makes no ADD during a GC
	mu           sync.Mutex
	held         map[netip.Addr]string // addresses of live containers
	died         map[string]time.Time
	adds, failed int
}

// TestChaos lets twenty workers add and delete containers on a leaking /24. No address is held
// twice, and no live container loses its address. An ADD finds no address only if no leak is much
// older than the minimum age.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	t.Logf("seed %d", seed)
	c := &chaos{testNode: newTestNode(t), held: make(map[netip.Addr]string), died: make(map[string]time.Time)}
	const blocked = addresses - chaosWorkers - 5 // so few addresses are free that the network is often full
	c.fill(blocked, rand.New(rand.NewPCG(seed, 0)))
	end := time.Now().Add(*chaosFor)
	var workers, others sync.WaitGroup
	stop := make(chan struct{})
	for i, do := range []func(*rand.Rand){c.kill, c.removeLeak, c.agent, c.libcniGC} {
		pause := []int{2, 5, 15, 40}[i] // at most, in seconds
		rng := rand.New(rand.NewPCG(seed, uint64(i)+1))
		others.Go(func() {
			for tick := time.After(0); ; tick = time.After(time.Duration(rng.IntN(1000*pause)) * time.Millisecond) {
				select {
				case <-stop:
					return
				case <-tick:
					do(rng)
				}
			}
		})
	}
	for w := range chaosWorkers {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)+9))
			for i := 0; (time.Now().Before(end) || c.result().Passes == 0) && !t.Failed(); i++ {
				c.container(sandbox(fmt.Sprintf("gone-w%d-%d", w, i)), rng) // an ADD that is killed leaves no other trace
			}
		})
	}
	workers.Wait()
	close(stop)
	others.Wait()
	cnitest.Until(t, "the children of killed plugins have ended", func() bool { return len(plugins(t)) == 0 })
	t.Logf("%d ADDs succeeded, and %d failed; %d passes", c.adds, c.failed, c.result().Passes)
	reserved := c.reserved()
	for i := range blocked {
		if id := reserved[address(i)]; id != fmt.Sprint("blocker", i) {
			t.Errorf("%s was released, and is reserved for %q", address(i), id)
		}
	}
}

// fill leaves few addresses free. Some are held throughout the test, by containers that only
// libcni's cache knows. The others leaked within the last twenty minutes, with the records that
// libcni has then.
func (c *chaos) fill(blocked int, rng *rand.Rand) {
	c.Make("blocker")
	for i := range addresses - chaosWorkers + 5 {
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
	c.adding.RLock()
	begun := time.Now()
	ip, err := c.add(id, "hostlocal-gc-ipam")
	c.adding.RUnlock()
	c.mu.Lock()
	if err != nil {
		c.judge(id, begun, err)
	} else {
		c.adds++
		if other := c.held[ip]; other != "" {
			c.t.Errorf("%v was given to %s, and %s has it", ip, id, other)
		}
		c.held[ip] = id
	}
	c.mu.Unlock()
	for range 1 + rng.IntN(3) { // its lifetime
		if err == nil {
			c.keeps(map[string]netip.Addr{id: ip})
		}
	}
	c.mu.Lock()
	if delete(c.held, ip); rng.IntN(10) > 0 {
		c.mu.Unlock()
		_ = c.del(id, "hostlocal-gc-ipam") // it may be killed
		c.mu.Lock()
	}
	c.Remove(id)
	c.died[id] = time.Now()
	c.mu.Unlock()
}

// judge checks a failed ADD. A killed plugin is no fault. A full range is one if a pass had to
// release some leak.
func (c *chaos) judge(id string, begun time.Time, err error) {
	c.failed++
	if !strings.Contains(err.Error(), noneLeft) {
		// A plugin that is killed after printing its result fails with an empty message. One that
		// is killed before fails with its stderr.
		for _, killed := range []string{"(add): ", "netplugin failed", "killed", "has ended", "no error message"} {
			if strings.Contains(err.Error(), killed) {
				return
			}
		}
		c.t.Errorf("ADD of %s: %v", id, err)
		return
	}
	limit := begun.Add(-minAge - grace)
	if strings.Contains(err.Error(), "it does not count") { // a killed plugin left an address without a record
		limit = begun.Add(-gc.DefaultMinAge - grace)
	}
	for ip, owner := range c.reserved() {
		died, ok := c.died[owner]
		info, statErr := os.Stat(c.file(ip))
		if ok && statErr == nil && info.ModTime().Before(limit) && died.Before(begun.Add(-grace)) {
			c.t.Errorf("ADD of %s found no address, and %s leaked: reserved %v ago, its container %s ended %v ago: %v",
				id, ip, time.Since(info.ModTime()), owner, time.Since(died), err)
			return
		}
	}
}

// kill kills a plugin.
func (c *chaos) kill(rng *rand.Rand) {
	if running := plugins(c.t); len(running) > 0 {
		_ = syscall.Kill(running[rng.IntN(len(running))], syscall.SIGKILL) // may have ended
	}
}

// removeLeak removes the file of an ended container under host-local's lock, as a person does.
func (c *chaos) removeLeak(*rand.Rand) {
	for ip, id := range c.reserved() {
		c.mu.Lock()
		_, ended := c.died[id]
		c.mu.Unlock()
		if ended {
			// It may be another's by now.
			_ = exec.Command("flock", c.file("lock"), "sh", "-c", "grep -q "+id+" "+c.file(ip)+" && rm "+c.file(ip)).Run()
			return
		}
	}
}

// agent makes a pass with the plugin's sources and a minimum age of a minute, without its lock.
func (c *chaos) agent(*rand.Rand) {
	conf, confErr := parseConfig([]byte(c.config()))
	source, err := newSource(conf)
	if err := errors.Join(confErr, err); err != nil {
		c.t.Error(err)
		return
	}
	rec, err := gc.New(hostlocal.New(c.dataDir()), []string{network}, source, gc.Options{MinAge: time.Minute})
	if err == nil {
		_, _ = rec.Reconcile(context.Background()) // a source may miss something that changes
	}
}

// libcniGC runs the CNI verb GC, with all containers that exist.
func (c *chaos) libcniGC(*rand.Rand) {
	c.adding.Lock()
	defer c.adding.Unlock()
	var valid []types.GCAttachment
	for _, id := range c.IDs() {
		valid = append(valid, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	for i := range addresses {
		valid = append(valid, types.GCAttachment{ContainerID: fmt.Sprint("blocker", i), IfName: "eth0"})
	}
	_ = c.cni.GCNetworkList(context.Background(), c.list("hostlocal-gc-ipam"), &libcni.GCArgs{ValidAttachments: valid}) // DELs may be killed
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
