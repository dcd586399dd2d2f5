// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

var (
	pairs    = flag.Int("pairs", 250, "how many ADD and DEL pairs TestPairsWithKills makes")
	pairSeed = flag.Uint64("pairs.seed", 0, "seed of TestPairsWithKills; 0 is a random one")
)

// TestPairsWithKills adds and deletes containers from several workers while server and
// plugins are killed at random moments. A runtime repeats failed requests. At the end no
// address is leaked, and no address was ever given to two containers at once.
func TestPairsWithKills(t *testing.T) {
	seed := *pairSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	total := *pairs
	if testing.Short() {
		total = min(total, 100)
	}
	p := &stress{node: newNode(t), held: make(map[netip.Addr]string), kills: make(chan time.Duration)}
	p.restart()
	var workers sync.WaitGroup
	begun := time.Now()
	const parallel = 4
	for w := range parallel {
		space := fmt.Sprintf("space%d", w)
		p.Make(space)
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for i := w; i < total && !t.Failed(); i += parallel {
				p.pair(rng, fmt.Sprintf("c%d", i), space, i < parallel)
			}
		})
	}
	done := make(chan struct{})
	go func() { workers.Wait(); close(done) }()
	p.killOnRequest(done)

	p.restart()
	p.agree(0)
	line := fmt.Sprintf("CNI server, seed %d: %d ADD/DEL pairs in %v (%d ADDs and %d DELs were repeated), %d kills of the server, %d of plugins: "+
		"%d addresses lost, %d held twice", seed, p.pairs.Load(), time.Since(begun).Round(time.Second), p.adds.Load(), p.dels.Load(),
		p.servers, p.plugins.Load(), len(p.holding().Reserved), p.twice.Load())
	fmt.Println(line)
	if !t.Failed() && (p.servers == 0 || p.plugins.Load() == 0) {
		t.Error("the server or no plugin was killed")
	}
}

// stress is a node with many containers, and their current addresses.
type stress struct {
	*node
	mu   sync.Mutex // guards held
	held map[netip.Addr]string
	down sync.Mutex // held while the server is being replaced

	// kills requests a kill of the server after a time.
	kills chan time.Duration

	pairs, adds, dels, plugins, twice atomic.Int64
	servers                           int
}

// pair is an ADD and a DEL of one container, each repeated until it succeeds. Before an ADD is
// repeated, there may be a DEL, as runtimes do. During the first pair of a worker, server and
// plugin are always killed.
func (p *stress) pair(rng *rand.Rand, id, space string, first bool) {
	if first || rng.IntN(8) == 0 {
		p.kills <- time.Duration(rng.IntN(60)) * time.Millisecond
	}
	var ips []netip.Addr
	for ; ; first = false {
		out, err := p.call(rng, "ADD", id, space, first)
		if err == nil {
			ips = p.hold(id, out)
			break
		}
		p.adds.Add(1)
		if rng.IntN(2) == 0 {
			p.delete(rng, id, space)
		}
	}
	p.release(ips)
	p.delete(rng, id, space)
	p.pairs.Add(1)
}

func (p *stress) delete(rng *rand.Rand, id, space string) {
	for !p.t.Failed() {
		if _, err := p.call(rng, "DEL", id, space, false); err == nil {
			return
		}
		p.dels.Add(1)
	}
}

// hold notes the container of the addresses of an ADD.
func (p *stress) hold(id string, result []byte) (ips []netip.Addr) {
	parsed, err := types100.NewResult(result)
	if err != nil {
		p.t.Errorf("ADD of %s: %v in %q", id, err, result)
		return nil
	}
	current := parsed.(*types100.Result)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range current.IPs {
		ip, _ := netip.AddrFromSlice(c.Address.IP)
		ip = ip.Unmap()
		if other := p.held[ip]; other != "" {
			p.twice.Add(1)
			p.t.Errorf("%v is given to %s while %s has it", ip, id, other)
		}
		p.held[ip] = id
		ips = append(ips, ip)
	}
	if len(ips) != 2 {
		p.t.Errorf("ADD of %s gave %v", id, ips)
	}
	return ips
}

// release notes that the addresses may be released from now on, by a DEL.
func (p *stress) release(ips []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ip := range ips {
		delete(p.held, ip)
	}
}

// call runs the plugin, and sometimes kills it: with atOnce before it has its configuration.
func (p *stress) call(rng *rand.Rand, verb, id, space string, atOnce bool) ([]byte, error) {
	cmd := exec.Command(filepath.Join(p.bin, "cniserver"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_IFNAME=eth0",
		"CNI_NETNS="+cnitest.NetNS(space), "CNI_PATH="+p.bin)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if atOnce { // it still reads its configuration
		_ = cmd.Process.Kill() // Wait returns the error
	} else if rng.IntN(20) == 0 {
		kill := time.AfterFunc(time.Duration(rng.IntN(60))*time.Millisecond, func() { _ = cmd.Process.Kill() }) // it may have ended
		defer kill.Stop()
	}
	if !atOnce {
		_, err = io.WriteString(stdin, p.plugin("one"))
		err = errors.Join(err, stdin.Close())
	}
	err = errors.Join(cmd.Wait(), err)
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		p.plugins.Add(1)
	}
	if err != nil {
		p.down.Lock()   // waits until the server is back
		p.down.Unlock() //nolint:staticcheck // nothing to do in between
	}
	return out.Bytes(), err
}

// killOnRequest kills and restarts the server as requested, until the workers have ended.
func (p *stress) killOnRequest(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case in := <-p.kills:
			<-time.After(in)
		}
		p.down.Lock()
		p.restart()
		p.down.Unlock()
		p.servers++
	}
}
