// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

var pairs = flag.Int("pairs", 120, "how many ADD and DEL pairs TestPairsWithKills makes")

// Six callers add and delete containers while server and plugins are killed at random moments: by
// this version, then by a version without a record, then by this one again, which starts while ADDs
// of the other are in flight. A runtime sends a DEL after a failed ADD. No address is given to
// two containers. At the end disk, record and kernel have the same addresses, those of the live ones.
func TestPairsWithKills(t *testing.T) {
	p := &stress{node: newNode(t), held: make(map[netip.Addr]string)}
	p.restart(p.runtimeLists("other")...)
	p.run(p.one(), *pairs/3)()
	p.restart(p.runtimeLists("other")...)
	p.agree(2, p.live...)
	if p.kills == 0 {
		t.Error("the server was never killed")
	}
	p.kill()

	begun := p.done.Load()
	wait := p.run(p.direct("one"), *pairs/3)
	cnitest.Until(t, "half of the pairs are done", func() bool { return p.done.Load() >= begun+int64(*pairs/6) })
	p.mu.Lock()
	flags := p.runtimeLists(append(p.live, "other")...)
	p.mu.Unlock()
	p.restart(flags...)
	wait()
	p.restart(flags...)
	p.run(p.one(), *pairs-2*(*pairs/3))()

	for ip, id := range p.held {
		if !cnitest.Exists(p.path("networks/one/" + ip.String())) {
			t.Errorf("%v is lost, which %s has", ip, id)
		}
	}
	p.dateBack() // so that the runtime lists all containers by now
	p.restart(p.runtimeLists(append(p.live, "other")...)...)
	p.agree(2, p.live...)
	t.Logf("%d pairs, %d failed requests, %d kills of the server", p.done.Load(), p.failed.Load(), p.kills)
}

// stress is a node with many containers.
type stress struct {
	*node
	mu    sync.Mutex // guards held and live
	held  map[netip.Addr]string
	live  []string     // those that stay
	down  sync.RWMutex // locked while the server is being replaced
	kills int

	done, failed atomic.Int64
}

// run makes pairs from six callers. With a server it kills that now and then. The result waits for
// their end.
func (p *stress) run(list *libcni.NetworkConfigList, pairs int) (wait func()) {
	var callers sync.WaitGroup
	next, first := new(atomic.Int64), p.done.Load()
	kill, ended := make(chan time.Duration), make(chan struct{})
	for range 6 {
		callers.Go(func() {
			for i := next.Add(1); i <= int64(pairs) && !p.t.Failed(); i = next.Add(1) {
				if list.Plugins[0].Network.Type == "cniserver" && i%8 == 1 {
					kill <- rand.N(60 * time.Millisecond)
				}
				p.pair(list, sandbox(fmt.Sprint("c", first+i)), i%4 == 0)
				p.done.Add(1)
			}
		})
	}
	go func() { callers.Wait(); close(ended) }()
	return func() {
		for {
			select {
			case <-ended:
				return
			case in := <-kill:
				<-time.After(in)
			}
			p.down.Lock()
			p.restart(p.runtimeLists("other")...)
			p.down.Unlock()
			p.kills++
		}
	}
}

// pair is an ADD of a container and, unless it stays, its DEL.
func (p *stress) pair(list *libcni.NetworkConfigList, id string, stays bool) {
	p.Make(id)
	add := func(ctx context.Context) error {
		_, err := p.cni().AddNetworkList(ctx, list, runtimeConf(id))
		return err
	}
	del := func(ctx context.Context) error { return p.cni().DelNetworkList(ctx, list, runtimeConf(id)) }
	for p.call(add) != nil && !p.t.Failed() {
		p.until(del)
	}
	ips := p.Addresses(id)
	p.mu.Lock()
	for _, ip := range ips {
		if other := p.held[ip]; other != "" {
			p.t.Errorf("%v is given to %s while %s has it", ip, id, other)
		}
		p.held[ip] = id
	}
	if len(ips) != 2 {
		p.t.Errorf("%s by %s has %v", id, list.Plugins[0].Network.Type, ips)
	}
	if stays {
		p.live = append(p.live, id)
		p.mu.Unlock()
		return
	}
	for _, ip := range ips {
		delete(p.held, ip)
	}
	p.mu.Unlock()
	p.until(del)
	p.Remove(id)
}

// until repeats a request until it succeeds.
func (p *stress) until(do func(context.Context) error) {
	for p.call(do) != nil && !p.t.Failed() {
	}
}

// call does a request, and sometimes kills its plugin.
func (p *stress) call(do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	if rand.N(16) == 0 {
		timer := time.AfterFunc(rand.N(100*time.Millisecond), cancel)
		defer timer.Stop()
	}
	err := do(ctx)
	if err != nil {
		p.failed.Add(1)
		p.down.RLock() // waits until the server is back
		p.down.RUnlock()
	}
	return err
}
