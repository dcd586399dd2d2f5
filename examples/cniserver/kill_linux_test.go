// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A server that is killed between any two steps neither leaks an address nor releases a
// used one: after its next start disk, record and kernel agree, also after the runtime
// repeats its request, and after it sends the opposite one (hazard 25).
//
// Guard: [server.add] and [server.detach] set the intent before their first step and remove it after
// the last one. [server.start] finishes what is left, unless its container may live, and drops what has no namespace.
func TestHazard24KilledBetweenSteps(t *testing.T) {
	add := func(n *node, one *libcni.NetworkConfigList) error { return n.add(one, "c") }
	del := func(n *node, one *libcni.NetworkConfigList) error { return n.del(one, "c") }
	gc := func(n *node, one *libcni.NetworkConfigList) error { return n.gc(one, "a") }
	for _, row := range []struct {
		reason  string
		before  bool // whether c is attached before
		request func(n *node, one *libcni.NetworkConfigList) error
		script  string // of the delegate
		rename  string // the file before whose change the server dies
		start   string // of the delegate during the next start, which dies, too
		again   string // another version then attaches c again, and how
	}{
		{"ADD: intended", false, add, "ADD before", "", "", ""},
		{"ADD: reserved and plumbed", false, add, "ADD after", "", "", ""},
		{"ADD: likewise, and the next start before it releases", false, add, "ADD after", "", "DEL before", ""},
		{"ADD: likewise, and the next start before it forgets", false, add, "ADD after", "", "DEL after", ""},
		{"ADD: recorded", false, add, "ADD block", "run/intents.json", "", ""},
		{"DEL: unplumbed", true, del, "DEL before", "", "", ""},
		{"DEL: released", true, del, "DEL after", "", "", ""},
		{"DEL: forgotten", true, del, "DEL block", "run/intents.json", "", ""},
		{"ADD: reserved, and c is restarted after a rollback", false, add, "ADD after", "", "", "restart"},
		{"DEL: unplumbed, and c is restarted after a rollback", true, del, "DEL before", "", "", "restart"},
		{"ADD: reserved, and c is attached after a rollback", false, add, "ADD after", "", "", "attach"},
		{"GC: detached", true, gc, "GC before", "", "", ""},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			n.scripted()
			n.restart("--gc-min-age", "0")
			one := n.one()
			n.mustAdd(one, "a") // another container, which must not change
			n.Make("c")
			if row.before {
				n.mustAdd(one, "c")
			}
			n.script(row.script)
			failed := make(chan error, 1)
			go func() { failed <- row.request(n, one) }()
			if row.rename != "" {
				n.arrived()
				n.traced(func() { n.goOn(); n.died() }, "-P", n.path(row.rename), "-e", "inject=/^rename:signal=KILL")
			} else {
				n.died()
			}
			if err := <-failed; err == nil {
				t.Fatal("the server was killed, and the request succeeds")
			}
			n.script(row.start)
			if row.start != "" && n.start() {
				t.Fatal("the server should have died while it started")
			}
			n.script()
			if row.again != "" {
				n.must(n.del(n.direct("one"), "c"))
				if row.again == "restart" {
					n.Remove("c")
				}
				n.mustAdd(n.direct("one"), "c")
				n.dateBack(time.Hour)
				if row.again == "attach" { // in the same namespace
					n.restart("--source", "file:"+n.path("none")) // does not answer
				} else if !row.before {
					n.restart() // without a source
				}
				n.restart(n.runtimeLists("a", "c")...)
				if len(n.reserved()) != 4 || len(n.Addresses("c")) != 2 {
					t.Errorf("reserved: %v; c has %v", n.reserved(), n.Addresses("c"))
				}
				n.must(del(n, one))
				n.agree(2, "a")
				return
			}
			n.restart("--gc-min-age", "0")
			n.agree(2, "a")
			n.must(row.request(n, one))
			n.must(del(n, one))
			n.agree(2, "a")
			n.must(add(n, one))
			n.agree(2, "a", "c")
		})
	}
}

// A delegate that reserves or releases goes on when the server is killed. The next start
// waits for its end before it reads the reservations.
//
// Guard: [waitForDelegates].
func TestHazard24KilledWhileADelegateGoesOn(t *testing.T) {
	for _, verb := range []string{"ADD", "DEL"} {
		t.Run(verb, func(t *testing.T) {
			n := newNode(t)
			n.scripted()
			n.restart()
			one := n.one()
			n.mustAdd(one, "a", "c")
			do := n.del
			if verb == "ADD" {
				n.must(n.del(one, "c"))
				do = n.add
			}
			n.script(verb + " block")
			failed := make(chan error)
			go func() { failed <- do(one, "c") }()
			n.arrived()
			if ips := n.Addresses("c"); len(ips) > 0 {
				t.Errorf("the namespace has %v while a delegate releases", ips)
			}
			n.kill()
			if err := <-failed; err == nil {
				t.Fatalf("%s: the server was killed, and the request succeeds", verb)
			}
			waited := false
			n.waits = func() { waited = true; n.goOn() }
			if n.restart(); !waited {
				t.Fatalf("%s: the server did not wait for the delegate", verb)
			}
			n.agree(2, "a")
			n.mustAdd(one, "c")
			n.agree(2, "a", "c")
		})
	}
}

// If a step fails, the error is in the answer, those after it are not done, and what is left can
// be repeated. An ADD that fails is undone. An intent that can't be finished keeps its addresses.
//
// Guard: [server.add] undoes, and the order of [server.detach].
func TestHazard25AStepFails(t *testing.T) {
	n := newNode(t)
	n.scripted()
	s := n.newServer()
	for _, id := range []string{"a", "b", "c"} {
		n.Make(id)
	}
	for _, id := range []string{"a", "b"} {
		_, err := s.handle(t.Context(), "ADD", n.args(id))
		n.must(err)
	}
	s.gcMinAge = 0
	record, run := n.recordFile()+".tmp", n.intentsFile()+".tmp"
	for _, row := range []struct {
		reason, command, id, script, inTheWay string
		errs                                  string // of the answer, apart by |
		intents, entries                      int    // left after it
	}{
		{"a delegate's error and its code", "CHECK", "a", "CHECK fail", "", "no CHECK today", 0, 2},
		{"a delegate ends before what it has started", "ADD", "c", "ADD leave", "", "WaitDelay", 0, 2},
		{"an attachment must be detached first, and is not harmed", "ADD", "a", "", "", "DEL must come before", 0, 2},
		{"nothing begins without an intent", "ADD", "c", "", run, "writing the intent", 0, 2},
		{"likewise", "DEL", "a", "", run, "writing the intent", 0, 2},
		{"an ADD that can't be recorded is undone", "ADD", "c", "", record, "attachments", 0, 2},
		{"... or keeps its intent", "ADD", "c", "DEL fail", record, "attachments|no DEL today", 1, 2},
		{"... until a DEL", "DEL", "c", "", "", "", 0, 2},
		{"an ADD fails and is undone", "ADD", "c", "ADD fail", "", "no ADD today", 0, 2},
		{"an ADD fails and can't be undone", "ADD", "c", "ADD fail\nDEL fail", "", "no ADD today|no DEL today", 1, 2},
		{"the next ADD does not hide that", "ADD", "c", "", "", "DEL must come before", 1, 2},
		{"a start can't finish it either", "start", "", "DEL fail", "", "", 1, 2},
		{"... and the next one can", "start", "", "", "", "", 0, 2},
		{"a GC tries all of them", "GC", "", "DEL fail", "", "container a in|container b in", 2, 2},
		{"a DEL can't be recorded", "DEL", "a", "", record, "attachments", 2, 2},
		{"it is repeated", "DEL", "a", "", "", "", 1, 1},
		{"a GC's own error", "GC", "", "GC fail", "", "no GC today", 0, 0},
	} {
		n.script(row.script)
		if row.inTheWay != "" {
			n.must(os.MkdirAll(filepath.Join(row.inTheWay, "x"), 0o700))
		}
		var err error
		if row.command == "start" {
			err = s.start(t.Context())
		} else {
			_, err = s.handle(t.Context(), row.command, n.args(row.id))
		}
		for want := range strings.SplitSeq(row.errs, "|") {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s of %q: %v; want %q", row.reason, row.command, row.id, err, want)
			}
		}
		if left, all := len(s.intents.all()), len(s.record.Entries()); left != row.intents || all != row.entries {
			t.Errorf("%s: %d intents are left, %d entries; want %d, %d", row.reason, left, all, row.intents, row.entries)
		}
		if row.inTheWay != "" {
			n.must(os.RemoveAll(row.inTheWay))
		}
		if got := len(n.reserved()); row.script != "" && got < 2*row.entries {
			t.Errorf("%s: %d reservations are left", row.reason, got)
		}
	}
	n.agree(2)
}

// A DEL succeeds and releases even if the namespace is gone. Another one at its path, that of
// another container, keeps its interface, also if it has the number of the first one (hazard 50). If
// the interface can't be removed, as lo, nothing is released: unplumbing comes before releasing.
//
// Guard: [request.NetNSID], [server.unplumb] asks the record whose the present namespace is, and the order of [server.detach].
func TestHazard25NamespaceIsGone(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	eth0 := netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
	inC := func(do func() error) error {
		return ns.WithNetNSPath(cnitest.NetNS("c"), func(ns.NetNS) error { return do() })
	}
	for _, row := range []struct {
		reason string
		change func(r *request)
	}{
		{"its path is gone", func(*request) {}},
		{"its mount is gone, and the mount point is left", func(r *request) { cnitest.Write(t, r.Netns, "", 0) }},
		{"the runtime does not name it", func(r *request) { r.Netns = "" }},
		{"another one is at its path", func(*request) {
			n.Make("c")
			n.must(inC(func() error { return netlink.LinkAdd(&eth0) }))
		}},
	} {
		n.Make("c")
		_, err := s.handle(t.Context(), "ADD", n.args("c"))
		n.must(err)
		r, err := s.newRequest(n.args("c"))
		n.must(err)
		n.Remove("c")
		row.change(r)
		if err := s.detach(t.Context(), r); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		n.agree(2)
		_ = os.Remove(cnitest.NetNS("c")) // the mount point, if there is one
	}
	if err := inC(func() error { _, err := netlink.LinkByName("eth0"); return err }); err != nil {
		t.Errorf("the other container's interface: %v", err)
	}
	n.Make("b")
	_, err := s.handle(t.Context(), "ADD", n.args("b"))
	n.must(err)
	late := n.args("c")
	late.Netns = cnitest.NetNS("b") // the kernel has used the number again, too
	_, err = s.handle(t.Context(), "DEL", late)
	n.must(err)
	n.agree(2, "b")
	n.Remove("b") // its DEL never comes, and another container gets the path and maybe the number
	n.Make("b")
	for _, command := range []string{"ADD", "DEL"} {
		_, err = s.handle(t.Context(), command, late)
		n.must(err)
	}
	if left := n.Addresses("b"); len(left) > 0 {
		t.Errorf("released, and still configured: %v", left)
	}
	held := n.path("networks/one/10.9.1.7")
	cnitest.Write(t, held, "c\r\nlo", 0)
	args := n.args("c")
	args.IfName = "lo"
	args.StdinData = []byte(strings.Replace(string(args.StdinData), "bridge", "ptp", 1)) // which releases first
	if _, err := s.handle(t.Context(), "DEL", args); err == nil || !cnitest.Exists(held) || len(s.intents.all()) != 1 {
		t.Errorf("%v; the address is reserved: %t", err, cnitest.Exists(held))
	}
}

// An ADD was interrupted, and can't be undone. Its address is still in its namespace, so no start, pass or GC releases it.
//
// Guard: [server.loop] and [server.gc] ask [server.intents].
func TestHazard24UnfinishedIsKept(t *testing.T) {
	n := newNode(t)
	n.scripted()
	n.restart()
	n.Make(sandbox("a"))
	n.script("ADD after")
	if err := n.add(n.one(), sandbox("a")); err == nil {
		t.Fatal("the server was killed, and the ADD succeeds")
	}
	n.died()
	n.script("DEL fail")
	n.dateBack(time.Hour)
	n.restart(n.runtimeLists("other")...)
	started := len(n.reserved())
	if n.must(n.gc(n.one())); started != 2 || len(n.reserved()) != 2 {
		t.Errorf("%d are reserved after a start, %d after a GC", started, len(n.reserved()))
	}
}

// The kernel uses the number of a namespace again. What is mounted then has another ID. A link, as below /proc, can't tell, and keeps
// its ID.
//
// Guard: [netnsID] has the time of a mount's inode.
func TestHazard50NumberIsUsedAgain(t *testing.T) {
	n, path, ids := newNode(t), cnitest.NetNS("x"), make(map[string]string)
	for range 100_000 {
		n.Make("x")
		number, _, _ := strings.Cut(netnsID(path), " ")
		id := netnsID(path)
		n.Remove("x")
		if was, again := ids[number]; again {
			if was == id || !strings.HasSuffix(netnsID("/proc/thread-self/ns/net"), " 0") {
				t.Errorf("the IDs are %s, %s, and %s", was, id, netnsID("/proc/thread-self/ns/net"))
			}
			return
		}
		ids[number] = id
	}
	t.Error("no number is used again")
}

var pairs = flag.Int("pairs", 120, "how many ADD and DEL pairs TestPairsWithKills makes")

// Six callers add and delete containers while server and plugins are killed at random moments: by
// this version, then by a version without a record, then by this one again, which starts while ADDs
// of the other are in flight. A runtime sends a DEL after a failed ADD. No address is given to
// two containers. At the end disk, record and kernel have the same addresses, those of the live ones.
func TestPairsWithKills(t *testing.T) {
	p := &stress{node: newNode(t), held: make(map[netip.Addr]string)}
	p.restart(p.runtimeLists("other")...)
	p.run(p.one(), *pairs/3)(true)
	p.restart(p.runtimeLists("other")...)
	p.agree(2, p.live...)
	p.kill()

	begun := p.done.Load()
	wait := p.run(p.direct("one"), *pairs/3)
	cnitest.Until(t, "half of the pairs are done", func() bool { return p.done.Load() >= begun+int64(*pairs/6) })
	p.mu.Lock()
	flags := p.runtimeLists(append(p.live, "other")...)
	p.mu.Unlock()
	p.restart(flags...)
	wait(false)
	p.restart(flags...)
	p.run(p.one(), *pairs-2*(*pairs/3))(true)

	for ip, id := range p.held {
		if !cnitest.Exists(p.path("networks/one/" + ip.String())) {
			t.Errorf("%v is lost, which %s has", ip, id)
		}
	}
	p.dateBack(time.Hour) // so that the runtime lists all containers by now
	p.restart(p.runtimeLists(append(p.live, "other")...)...)
	p.agree(2, p.live...)
}

// stress is a node with many containers.
type stress struct {
	*node
	mu   sync.Mutex // guards held and live
	held map[netip.Addr]string
	live []string     // those that stay
	down sync.RWMutex // locked while the server is being replaced

	done atomic.Int64
}

// run makes pairs from six callers. The result waits for their end; with kills it kills the server
// after every five pairs.
func (p *stress) run(list *libcni.NetworkConfigList, pairs int) (wait func(kills bool)) {
	var callers sync.WaitGroup
	var next, ended atomic.Int64
	first := p.done.Load()
	for range 6 {
		callers.Go(func() {
			defer ended.Add(1)
			for i := next.Add(1); i <= int64(pairs) && !p.t.Failed(); i = next.Add(1) {
				p.pair(list, sandbox(fmt.Sprint("c", first+i)), i%4 == 0)
				p.done.Add(1)
			}
		})
	}
	return func(kills bool) {
		for at := first + 5; kills && ended.Load() < 6; at += 5 {
			cnitest.Until(p.t, "five pairs are done", func() bool { return p.done.Load() >= at || ended.Load() == 6 })
			p.down.Lock()
			p.restart(p.runtimeLists("other")...)
			p.down.Unlock()
		}
		callers.Wait()
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
	// A delegate's own plugins go on when it is killed: after a DEL they would release for the next ADD.
	server := list.Plugins[0].Network.Type == "cniserver"
	for !p.succeeds(add, true) {
		for !p.succeeds(del, server) {
		}
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
		p.t.Errorf("%s has %v", id, ips)
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
	for !p.succeeds(del, server) {
	}
	p.Remove(id)
}

// succeeds does a request, and may kill its plugin. After an error it waits until the server is back.
func (p *stress) succeeds(do func(context.Context) error, kill bool) bool {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	if kill && rand.N(16) == 0 {
		defer time.AfterFunc(rand.N(100*time.Millisecond), cancel).Stop()
	}
	if do(ctx) == nil || p.t.Failed() {
		return true
	}
	p.down.RLock()
	defer p.down.RUnlock()
	return false
}
