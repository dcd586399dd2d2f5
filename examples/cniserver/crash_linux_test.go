// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var dual = kind{"1.1.0", "bridge", true}

// Killed between any two steps, the server loses no address and forgets none:
// after its next start disk, record and kernel agree, and go on to do so when the
// runtime repeats its request, and when it asks for the opposite (hazards 24 and 25).
// That start leaves the same behind at each point, so what the runtime does then need
// not be tried by itself.
func TestHazard24KilledBetweenSteps(t *testing.T) {
	type action struct {
		do  func(n *node, list *libcni.NetworkConfigList)
		has bool // whether c holds addresses after it
	}
	add := action{func(n *node, list *libcni.NetworkConfigList) { n.mustAdd(list, "c") }, true}
	del := action{func(n *node, list *libcni.NetworkConfigList) { n.mustDel(list, "c") }, false}
	gc := action{func(n *node, list *libcni.NetworkConfigList) {
		if err := n.gcNow(list, "a"); err != nil {
			n.t.Errorf("GC again: %v", err)
		}
	}, false}
	for _, row := range []struct {
		verb   string
		points []string
		begin  func(n *node, list *libcni.NetworkConfigList) error
		before bool // whether c is there before
		left   bool // whether c holds addresses when the runtime does nothing
		then   []action
	}{
		{
			"ADD", []string{addIntended, addPlumbed, addRecorded},
			func(n *node, list *libcni.NetworkConfigList) error { _, err := n.add(list, "c"); return err },
			false, false, []action{add, del},
		},
		{
			"ADD", []string{addDone}, // it is complete, and only the answer is lost
			func(n *node, list *libcni.NetworkConfigList) error { _, err := n.add(list, "c"); return err },
			false, true, []action{add, add, del},
		},
		{
			"DEL", []string{delIntended, delUnplumbed, delReleased, delForgotten, delDone},
			func(n *node, list *libcni.NetworkConfigList) error { return n.del(list, "c") },
			true, false, []action{del, add},
		},
		{
			"GC", []string{gcBegun},
			func(n *node, list *libcni.NetworkConfigList) error { n.forget(); return n.gcNow(list, "a") },
			true, true, []action{gc, del},
		},
		{
			"GC", []string{delIntended, delUnplumbed, delReleased, delForgotten, delDone, gcDetached, gcReconciled, gcForwarded},
			func(n *node, list *libcni.NetworkConfigList) error { n.forget(); return n.gcNow(list, "a") },
			true, false, []action{gc, add},
		},
	} {
		for _, point := range row.points {
			t.Run(fmt.Sprintf("%s dies at %s", row.verb, point), func(t *testing.T) {
				n := newNode(t)
				list := n.list("one", dual)
				n.restart()
				n.mustAdd(list, "a") // somebody else, who must not notice
				n.Make("c")
				if row.before {
					n.mustAdd(list, "c")
				}
				n.kill()
				if !n.start(point) {
					t.Fatal("the server died before it was asked for anything")
				}
				if err := row.begin(n, list); err == nil {
					t.Fatal("the server should have died")
				}
				n.died()
				n.restart()
				n.agree(2, holders(row.left)...)
				for _, then := range row.then {
					then.do(n, list)
					n.agree(2, holders(then.has)...)
				}
			})
		}
	}
}

func holders(c bool) []string {
	if c {
		return []string{"a", "c"}
	}
	return []string{"a"}
}

// Killed while it starts, with something to finish, something to forget and
// something to release, the server finishes it at its next start.
func TestHazard24KilledAtStart(t *testing.T) {
	for _, point := range []string{startFinished, startPruned, startHooked, delUnplumbed, delReleased, delForgotten} {
		t.Run(point, func(t *testing.T) {
			n := newNode(t)
			list := n.list("one", dual)
			n.restart()
			for _, id := range []string{"a", "dead"} {
				n.mustAdd(list, id)
			}
			n.dateBack() // by more than a file's timestamp may be wrong
			n.Make("c")
			n.kill()
			n.start(addPlumbed)
			if _, err := n.add(list, "c"); err == nil {
				t.Fatal("the server should have died")
			}
			n.died()
			n.Remove("dead") // no DEL
			if n.start(point) {
				t.Fatal("the server should have died while it started")
			}
			n.restart()
			n.agree(2, "a")
		})
	}
	t.Run(startBackfill, func(t *testing.T) { // before the very first record
		n := newNode(t)
		if n.start(startBackfill) {
			t.Fatal("the server should have died while it started")
		}
		n.restart()
		n.mustAdd(n.list("one", dual), "a")
		n.agree(2, "a")
	})
}

// ownBin gives the node a directory of plugins that it may change.
func (n *node) ownBin(names ...string) {
	n.t.Helper()
	n.bin = filepath.Join(n.dir, "bin")
	if err := os.Mkdir(n.bin, 0o700); err != nil {
		n.t.Fatal(err)
	}
	for _, name := range names {
		if err := os.Symlink(filepath.Join(cnitest.Bin(), name), filepath.Join(n.bin, name)); err != nil {
			n.t.Fatal(err)
		}
	}
	n.runtime()
}

// Between reserving and plumbing there is a delegate at work, which goes on when
// the server dies. The next start waits for its end before it looks. And no
// delegate releases an address before it is gone from the namespace.
func TestHazard24KilledWhileADelegateGoesOn(t *testing.T) {
	for _, row := range []struct{ verb, plugin string }{{"ADD", "bridge"}, {"ADD", "ptp"}, {"DEL", "bridge"}, {"DEL", "ptp"}} {
		t.Run(row.verb+" "+row.plugin, func(t *testing.T) {
			n := newNode(t)
			arrived, goOn := n.stopAt(row.verb)
			list := n.list("one", kind{"1.1.0", row.plugin, true})
			n.restart()
			n.mustAdd(list, "a")
			n.Make("c")
			if row.verb == "DEL" {
				n.mustAdd(list, "c")
			}
			n.stops()
			failed := make(chan error)
			go func() {
				if row.verb == "ADD" {
					_, err := n.add(list, "c")
					failed <- err
				} else {
					failed <- n.del(list, "c")
				}
			}()
			arrived()
			if ips := n.Addresses("c"); len(ips) > 0 {
				t.Errorf("%v are configured, and not yet or no longer plumbed", ips)
			}
			n.kill()
			if err := <-failed; err == nil {
				t.Fatal("the server is dead, and the request succeeds")
			}
			// The delegate goes on once the next server says that it waits for it.
			waited := false
			if !n.startWaiting("", func() { waited = true; goOn() }) || !waited {
				t.Fatalf("the server did not wait for the delegate (%t)", waited)
			}
			n.agree(2, "a")
			n.mustAdd(list, "c")
			n.agree(2, "a", "c")
		})
	}
}

// What can't be finished at a start is not forgotten, and nothing that it holds
// is released: a later start finishes it.
func TestHazard25WhatCannotBeFinished(t *testing.T) {
	n := newNode(t)
	n.ownBin("cniserver", "bridge", "host-local")
	list := n.list("one", dual)
	n.restart()
	n.mustAdd(list, "a")
	n.Make("c")
	n.kill()
	n.start(addPlumbed)
	if _, err := n.add(list, "c"); err == nil {
		t.Fatal("the server should have died")
	}
	n.died()
	away := filepath.Join(n.bin, "away")
	if err := os.Rename(filepath.Join(n.bin, "host-local"), away); err != nil {
		t.Fatal(err)
	}
	before := n.holding().Reserved
	n.restart()
	if diff := cmp.Diff(before, n.holding().Reserved); diff != "" || len(before) != 4 {
		t.Errorf("reserved before (-) and after a start that could not finish (+):\n%s", diff)
	}
	if err := os.Rename(away, filepath.Join(n.bin, "host-local")); err != nil {
		t.Fatal(err)
	}
	n.restart()
	n.agree(2, "a")
}

// On a full disk nothing is begun, and nothing is lost.
func TestDiskFull(t *testing.T) {
	n := newNode(t)
	list := n.list("one", dual)
	if err := os.Mkdir(n.state(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", n.state(), "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		if err := syscall.Unmount(n.state(), 0); err != nil {
			t.Error(err)
		}
	})
	n.restart()
	n.mustAdd(list, "a")
	fill := filepath.Join(n.state(), "fill")
	for f, err := os.Create(fill); ; {
		if err != nil {
			t.Fatal(err)
		}
		if _, err = f.Write(make([]byte, 4096)); err != nil {
			_ = f.Close()
			break
		}
	}
	n.Make("c")
	if _, err := n.add(list, "c"); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("ADD on a full disk: %v", err)
	}
	if err := n.del(list, "a"); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("DEL on a full disk: %v", err)
	}
	n.agree(2, "a")
	n.restart() // needs no room
	n.agree(2, "a")
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	n.mustDel(list, "a")
	n.mustAdd(list, "c")
	n.agree(2, "c")
}

// A record that is cut at any byte is refused: the server does not start, and
// touches nothing.
func TestHazard26RecordCutAtEveryByte(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.mustAdd(n.list("one", dual), "a")
	n.kill()
	before := n.holding()
	whole, err := os.ReadFile(n.recordFile())
	if err != nil {
		t.Fatal(err)
	}
	refused := func(cut int, start func() error) {
		t.Helper()
		if err := os.WriteFile(n.recordFile(), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := start(); err == nil || !strings.Contains(err.Error(), n.recordFile()) {
			t.Fatalf("with %d of %d bytes: %v", cut, len(whole), err)
		}
		got, err := os.ReadFile(n.recordFile())
		if err != nil || string(got) != string(whole[:cut]) {
			t.Fatalf("cut at byte %d, the record was changed: %q, %v", cut, got, err)
		}
	}
	// The end of newServer is the end of a start; whether it is, a few of them show.
	for cut := range len(whole) - 1 {
		refused(cut, func() error { _, err := n.serveOptions().newServer(); return err })
	}
	for _, cut := range []int{0, len(whole) / 2, len(whole) - 2} {
		refused(cut, func() error {
			if n.start("") {
				return nil
			}
			return errors.New(n.log.String())
		})
	}
	if err := os.WriteFile(n.recordFile(), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if diff := cmp.Diff(before, n.holding()); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

// The upgrade: pods run, and no agent has written a record so far. Another
// source says which exist, once; from then on the record does.
func TestHazard26Upgrade(t *testing.T) {
	n := newNode(t)
	list := n.list("one", dual)
	n.restart()
	for _, id := range []string{"a", "b", "leaked"} {
		n.mustAdd(list, id)
	}
	n.kill()
	n.dateBack()
	if err := os.RemoveAll(n.state()); err != nil {
		t.Fatal(err)
	}
	if n.start("") {
		t.Fatal("without a record and a source the server starts, on a node with reservations")
	}
	if !strings.Contains(n.log.String(), "--existing") {
		t.Error("the error does not say what to do")
	}
	// The runtime knows a by its sandbox, and b by one of its addresses.
	ipOfB := n.Addresses("b")[0]
	runtime := filepath.Join(n.dir, "runtime.json")
	pods, err := json.Marshal([]map[string]any{{"name": "web-a", "containerIDs": []string{"a"}}, {"name": "web-b", "ips": []string{ipOfB.String()}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(runtime, pods, 0o600); err != nil {
		t.Fatal(err)
	}
	if !n.start("", "--existing", "file:"+runtime) {
		t.Fatal("with a source the server does not start")
	}
	n.kill()
	n.Remove("leaked")
	if err := os.Remove(runtime); err != nil {
		t.Fatal(err)
	}
	n.restart() // the record alone
	n.agree(2, "a", "b")
	n.mustDel(list, "a")
	n.agree(2, "b")
}

// dateBack makes all reservations an hour old.
func (n *node) dateBack() {
	n.t.Helper()
	rs, err := hostlocal.New(n.dataDir()).List(n.t.Context())
	if err != nil || len(rs) == 0 {
		n.t.Fatalf("%d reservations, %v", len(rs), err)
	}
	for _, r := range rs {
		cnitest.DateBack(n.t, filepath.Join(n.dataDir(), r.Network, r.IP.String()), time.Hour)
	}
}

// The first start: a container was attached a moment ago, and no runtime lists
// it yet. It is recorded, so it is live for the starts and passes to come, until
// its DEL.
func TestHazard52FirstRecordWhileASandboxIsNotListed(t *testing.T) {
	n := newNode(t)
	list := n.list("one", dual)
	n.restart()
	n.mustAdd(list, "a")
	n.dateBack()
	n.mustAdd(list, "young")
	n.kill()
	if err := os.RemoveAll(n.state()); err != nil {
		t.Fatal(err)
	}
	runtime := filepath.Join(n.dir, "runtime.json")
	if err := os.WriteFile(runtime, []byte(`[{"name":"web-a","containerIDs":["a"]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if !n.start("", "--existing", "file:"+runtime) {
		t.Fatal("the server does not start")
	}
	n.kill()
	n.dateBack()
	n.restart()
	n.agree(2, "a", "young")
	n.mustDel(list, "young")
	n.agree(2, "a")
}

// An idle node: the record of this boot is empty, and that is an answer.
func TestHazard34EmptyRecord(t *testing.T) {
	n := newNode(t)
	list := n.list("one", dual)
	n.restart()
	n.mustAdd(list, "a")
	n.dateBack()  // by more than a file's timestamp may be wrong: the record speaks of what was reserved before it was written last
	n.Remove("a") // its DEL never comes
	n.restart()
	n.agree(2)
	if h := n.holding(); len(h.Reserved) != 0 {
		t.Errorf("still reserved: %v", h.Reserved)
	}
}
