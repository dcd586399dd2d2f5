// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A server that is killed between any two steps neither leaks an address nor releases a
// used one: after its next start disk, record and kernel agree, also after the runtime
// repeats its request, and after it sends the opposite one (hazard 25).
//
// Guard: [server.add] and [server.detach] set the intent before their first step and remove it
// after the last one, and [server.start] finishes what is left.
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
	}{
		{"ADD: intended", false, add, "ADD before", "", ""},
		{"ADD: reserved and plumbed", false, add, "ADD after", "", ""},
		{"ADD: likewise, and the next start before it releases", false, add, "ADD after", "", "DEL before"},
		{"ADD: likewise, and the next start before it forgets", false, add, "ADD after", "", "DEL after"},
		{"ADD: recorded", false, add, "ADD block", "run/intents.json", ""},
		{"DEL: unplumbed", true, del, "DEL before", "", ""},
		{"DEL: released", true, del, "DEL after", "", ""},
		{"DEL: forgotten", true, del, "DEL block", "run/intents.json", ""},
		{"GC: unplumbed", true, gc, "DEL before", "", ""},
		{"GC: detached", true, gc, "GC before", "", ""},
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
			n.restart("--gc-min-age", "0")
			n.agree(2, "a")
			for _, then := range []struct {
				do  func(n *node, one *libcni.NetworkConfigList) error
				ids []string
			}{{row.request, nil}, {del, []string{"a"}}, {add, []string{"a", "c"}}, {del, []string{"a"}}} {
				n.must(then.do(n, one))
				if then.ids != nil {
					n.agree(2, then.ids...)
				}
			}
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
			if !n.startAndWait(func() { waited = true; n.goOn() }) || !waited {
				t.Fatalf("%s: the server did not wait for the delegate (%t)", verb, waited)
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
		{"likewise", "STATUS", "", "STATUS fail", "", "no STATUS today", 0, 2},
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
		{"what could not be finished keeps its addresses", "start", "", "DEL fail", "", "", 2, 2},
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
		want := 2 * row.entries
		if got := len(n.reserved()); got < want && row.script != "" {
			t.Errorf("%s: %d reservations are left, want %d", row.reason, got, want)
		}
	}
	n.agree(2)
}

// The interface of another container, whose namespace is now at the path of an old one, is
// not removed: by an intent, or by a GC with the recorded path.
//
// Guard: [request.NetNSID].
func TestAnotherNamespaceAtThePath(t *testing.T) {
	for _, verb := range []string{"ADD", "GC"} {
		t.Run(verb, func(t *testing.T) {
			n := newNode(t)
			n.scripted()
			s := n.newServer()
			s.gcMinAge = 0
			n.Make("c")
			if verb == "ADD" {
				n.script("ADD fail", "DEL fail") // so that the intent stays
			}
			if _, err := s.handle(t.Context(), "ADD", n.args("c")); (err == nil) != (verb == "GC") {
				t.Fatal(err)
			}
			n.script()
			old, err := ns.GetNS(cnitest.NetNS("c")) // so that its inode number is not used again
			n.must(err)
			n.Remove("c")
			n.Make("c")
			in := func(do func() error) error {
				return ns.WithNetNSPath(cnitest.NetNS("c"), func(ns.NetNS) error { return do() })
			}
			n.must(in(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}) }))
			if verb == "ADD" {
				err = s.start(t.Context())
			} else {
				_, err = s.handle(t.Context(), "GC", n.args(""))
			}
			if there := in(func() error { _, err := netlink.LinkByName("eth0"); return err }); err != nil || there != nil {
				t.Errorf("%s: %v; the other container's interface: %v", verb, err, there)
			}
			n.agree(2)
			n.must(old.Close())
		})
	}
}

// A DEL succeeds and releases even if the namespace is gone. If the interface can't be removed, as
// lo, nothing is released: unplumbing comes before releasing.
func TestHazard25DELWithoutItsNamespace(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	for _, row := range []struct {
		reason string
		netns  func(args *skel.CmdArgs)
		errs   string
	}{
		{"its path is gone", func(*skel.CmdArgs) {}, ""},
		{"its mount is gone, and the mount point is left", func(args *skel.CmdArgs) { cnitest.Write(t, args.Netns, "", 0) }, ""},
		{"the runtime does not name it", func(args *skel.CmdArgs) { args.Netns = "" }, ""},
	} {
		n.Make("c")
		args := n.args("c")
		_, err := s.handle(t.Context(), "ADD", args)
		n.must(err)
		n.Remove("c")
		row.netns(&args)
		if _, err := s.handle(t.Context(), "DEL", args); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		n.agree(2)
		_ = os.Remove(cnitest.NetNS("c")) // it may not exist
	}
	n.Make("c")
	held := cnitest.Reserve(t, n.path("networks"), "one", "10.9.1.7", "c", 0)
	cnitest.Write(t, held, "c\r\nlo", 0)
	args := n.args("c")
	args.IfName = "lo"
	if _, err := s.handle(t.Context(), "DEL", args); err == nil || !cnitest.Exists(held) || len(s.intents.all()) != 1 {
		t.Errorf("%v; the address is reserved: %t", err, cnitest.Exists(held))
	}
}
