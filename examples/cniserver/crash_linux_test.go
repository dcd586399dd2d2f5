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

// A server that is killed between any two steps neither leaks an address nor releases a
// used one: after its next start disk, record and kernel agree, also after the runtime
// repeats its request, and after it sends the opposite one (hazards 24 and 25). That start
// has the same result for each point of a row, so the requests after it run in sequence.
func TestHazard24KilledBetweenSteps(t *testing.T) {
	type action struct {
		do  func(n *node, list *libcni.NetworkConfigList)
		has bool // whether c has addresses after it
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
		before bool // whether c is attached before
		left   bool // whether c has addresses if the runtime sends nothing
		then   []action
	}{
		{
			"ADD", []string{addIntended, addPlumbed, addRecorded},
			func(n *node, list *libcni.NetworkConfigList) error { _, err := n.add(list, "c"); return err },
			false, false, []action{add, del},
		},
		{
			"ADD", []string{addDone}, // it is complete: only the answer is lost
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
			func(n *node, list *libcni.NetworkConfigList) error { n.removeCache(); return n.gcNow(list, "a") },
			true, true, []action{gc, del},
		},
		{
			"GC", []string{delIntended, delUnplumbed, delReleased, delForgotten, delDone, gcDetached, gcReconciled, gcForwarded},
			func(n *node, list *libcni.NetworkConfigList) error { n.removeCache(); return n.gcNow(list, "a") },
			true, false, []action{gc, add},
		},
	} {
		for _, point := range row.points {
			t.Run(fmt.Sprintf("%s killed at %s", row.verb, point), func(t *testing.T) {
				n := newNode(t)
				list := n.list("one", dual)
				n.restart()
				n.mustAdd(list, "a") // another container, which must not change
				n.Make("c")
				if row.before {
					n.mustAdd(list, "c")
				}
				n.kill()
				if !n.start(point) {
					t.Fatal("the server died before the request")
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

// A server that is killed during a start that finishes, forgets and releases does the rest
// at its next start.
func TestHazard24KilledAtStart(t *testing.T) {
	for _, point := range []string{startFinished, startPruned, startHooked, delUnplumbed, delReleased, delForgotten} {
		t.Run(point, func(t *testing.T) {
			n := newNode(t)
			list := n.list("one", dual)
			n.restart()
			for _, id := range []string{"a", sandbox("dead")} {
				n.mustAdd(list, id)
			}
			n.dateBack() // by more than the granularity of a file's timestamp
			n.Make("c")
			n.kill()
			n.start(addPlumbed)
			if _, err := n.add(list, "c"); err == nil {
				t.Fatal("the server should have died")
			}
			n.died()
			n.Remove(sandbox("dead")) // no DEL
			if n.start(point) {
				t.Fatal("the server should have died while it started")
			}
			n.restart()
			n.agree(2, "a")
		})
	}
	t.Run(startBackfill, func(t *testing.T) { // the first start
		n := newNode(t)
		if n.start(startBackfill) {
			t.Fatal("the server should have died while it started")
		}
		n.restart()
		n.mustAdd(n.list("one", dual), "a")
		n.agree(2, "a")
	})
}

// ownBin gives the node a plugin directory of its own, with links to some plugins.
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

// A delegate that reserves or releases goes on when the server is killed. The next start
// waits for its end before it reads the reservations. No delegate releases an address before
// it is removed from the namespace.
func TestHazard24KilledWhileADelegateGoesOn(t *testing.T) {
	for _, row := range []struct{ verb, plugin string }{{"ADD", "bridge"}, {"ADD", "ptp"}, {"DEL", "bridge"}, {"DEL", "ptp"}} {
		t.Run(row.verb+" "+row.plugin, func(t *testing.T) {
			n := newNode(t)
			arrived, goOn := n.blockAt(row.verb)
			list := n.list("one", kind{"1.1.0", row.plugin, true})
			n.restart()
			n.mustAdd(list, "a")
			n.Make("c")
			if row.verb == "DEL" {
				n.mustAdd(list, "c")
			}
			n.block()
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
				t.Errorf("the namespace has %v during %s", ips, row.verb)
			}
			n.kill()
			if err := <-failed; err == nil {
				t.Fatal("the server was killed, and the request succeeds")
			}
			// The delegate goes on when the next server logs that it waits for it.
			waited := false
			if !n.startAndWait("", func() { waited = true; goOn() }) || !waited {
				t.Fatalf("the server did not wait for the delegate (%t)", waited)
			}
			n.agree(2, "a")
			n.mustAdd(list, "c")
			n.agree(2, "a", "c")
		})
	}
}

// An intent that a start can't finish is kept, and so are the addresses of its container. A
// later start finishes it.
func TestHazard25IntentThatCannotBeFinished(t *testing.T) {
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

// On a full disk a request fails before its first step.
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
	n.restart() // needs no space
	n.agree(2, "a")
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	n.mustDel(list, "a")
	n.mustAdd(list, "c")
	n.agree(2, "c")
}

// A record that is truncated at any byte is an error: the server does not start, and changes
// no file.
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
			t.Fatalf("truncated at byte %d, the record was changed: %q, %v", cut, got, err)
		}
	}
	// An error of newServer ends a start, as the rows below show.
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

// The upgrade: pods run, and there is no record. Another source lists the pods for the first
// record, and is not needed later.
func TestHazard26Upgrade(t *testing.T) {
	n := newNode(t)
	list := n.list("one", dual)
	n.restart()
	for _, id := range []string{"a", "b", sandbox("leaked")} {
		n.mustAdd(list, id)
	}
	n.kill()
	n.dateBack()
	if err := os.RemoveAll(n.state()); err != nil {
		t.Fatal(err)
	}
	if n.start("") {
		t.Fatal("on a node with reservations the server starts without a record and a source")
	}
	if !strings.Contains(n.log.String(), "--existing") {
		t.Error("the error does not say what to do")
	}
	// The runtime lists a with its sandbox, and b with one of its addresses.
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
		t.Fatal("the server does not start with a source")
	}
	n.kill()
	n.Remove(sandbox("leaked"))
	if err := os.Remove(runtime); err != nil {
		t.Fatal(err)
	}
	n.restart() // with the record alone
	n.agree(2, "a", "b")
	n.mustDel(list, "a")
	n.agree(2, "b")
}

// dateBack makes all reservations an hour old.
func (n *node) dateBack() {
	n.t.Helper()
	list, err := hostlocal.New(n.dataDir()).List(n.t.Context())
	if err != nil || len(list.Reservations) == 0 {
		n.t.Fatalf("%d reservations, %v", len(list.Reservations), err)
	}
	for _, r := range list.Reservations {
		cnitest.DateBack(n.t, filepath.Join(n.dataDir(), r.Network, r.IP.String()), time.Hour)
	}
}

// At the first start a container was just attached, and the runtime does not list it yet.
// It is recorded, so it is live until its DEL.
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

// An idle node: an empty record of this boot is an authoritative answer.
func TestHazard34EmptyRecord(t *testing.T) {
	n := newNode(t)
	list := n.list("one", dual)
	n.restart()
	n.mustAdd(list, sandbox("a"))
	n.dateBack()           // by more than the granularity of a file's timestamp
	n.Remove(sandbox("a")) // its DEL never comes
	n.restart()
	n.agree(2)
	if h := n.holding(); len(h.Reserved) != 0 {
		t.Errorf("still reserved: %v", h.Reserved)
	}
}
