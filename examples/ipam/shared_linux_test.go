// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// concurrently executes an ADD for each of many containers at once. It returns the addresses of the
// successful ones, and the errors of the others.
func (n *testNode) concurrently(count int, name, ipam string) (held map[string]netip.Addr, errs []error) {
	held = make(map[string]netip.Addr)
	for i := range count {
		n.Make(fmt.Sprint(name, i))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	begun := time.Now()
	for i := range count {
		all.Go(func() {
			id := fmt.Sprint(name, i)
			ip, err := n.add(id, ipam)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			held[id] = ip
		})
	}
	all.Wait()
	n.t.Logf("%s: %d of %d ADDs succeeded in %v", ipam, len(held), count, time.Since(begun).Round(time.Millisecond))
	return held, errs
}

// busy keeps every processor busy with two loops until the end of the test.
func busy(t *testing.T) {
	t.Helper()
	for range 2 * runtime.NumCPU() {
		loop := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = loop.Wait() }) // killed
	}
}

// On a full network whose reservations all leaked, as many of many concurrent ADDs succeed as with
// host-local on an empty one, each with an address of its own, however busy the node is.
func TestHazard99ManyADDsOnLeaks(t *testing.T) {
	count, large, leaks := 200, "10.9.0.0/16", 1<<16-3
	if testing.Short() { // the nightly run has all
		count, large, leaks = 60, "10.9.0.0/21", 1<<11-3
	}
	for _, row := range []struct {
		reason, subnet string
		leaks          int
		load           bool
	}{
		{"quiet", "10.9.0.0/24", addresses, false},
		{"busy", "10.9.0.0/24", addresses, true},
		{"a large network", large, leaks, false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			bare, n := newTestNode(t), newTestNode(t)
			if row.load {
				busy(t)
			}
			n.subnet, bare.subnet = row.subnet, row.subnet // they share a bridge
			want, _ := bare.concurrently(count, "bare", "host-local")
			for id := range want {
				if err := bare.del(id, "host-local"); err != nil {
					t.Error(err)
				}
			}
			for i := range row.leaks {
				n.reserve(fmt.Sprintf("10.9.%d.%d", (i+2)>>8, (i+2)&255), fmt.Sprint("gone", i), old)
			}
			held, errs := n.concurrently(count, "many", "hostlocal-gc-ipam")
			if len(held) < len(want) {
				t.Errorf("%d ADDs succeeded, and with host-local %d; among the errors: %v", len(held), len(want), errs[:min(3, len(errs))])
			}
			if passes, left := n.result().Passes, len(n.reserved()); passes > 3 || left != len(held) {
				t.Errorf("%d passes, %d reservations are left", passes, left)
			}
			n.keeps(held)
		})
	}
}

// Many concurrent ADDs on a full network without a leak fail, and share their passes, which begin at
// least passPause apart.
func TestManyADDsWithoutALeak(t *testing.T) {
	n := newTestNode(t)
	for i := range addresses {
		n.reserve(address(i), "no container ID", old) // malformed, and so kept for ever
	}
	begun := time.Now()
	_, errs := n.concurrently(40, "many", "hostlocal-gc-ipam")
	shared := 0
	for _, err := range errs {
		if !strings.Contains(err.Error(), noneLeft) || !strings.Contains(err.Error(), "malformed") {
			t.Error(err)
		}
		if strings.Contains(err.Error(), "another ADD's answer") {
			shared++
		}
	}
	passes, took := n.result().Passes, time.Since(begun)
	if len(errs) != 40 || shared == 0 || passes > 1+int(took/passPause) || len(n.reserved()) != addresses {
		t.Errorf("%d ADDs failed, %d used the answer of another, %d passes in %v", len(errs), shared, passes, took)
	}
}

// lock takes the lock for passes, as another ADD does.
func (n *testNode) lock() *os.File {
	n.t.Helper()
	lock, err := lockPasses(n.t.Context(), &config{network: network, dataDir: n.dataDir()})
	if err != nil {
		n.t.Fatal(err)
	}
	return lock
}

// ADDs that waited for another's pass use its result, depending on when the pass began and ended,
// whether they request an address or not.
func TestUsesTheResultOfAnother(t *testing.T) {
	const before, after = -time.Hour, time.Duration(0)
	for _, row := range []struct {
		reason     string
		begin, end time.Duration // of the last pass, relative to a time after the failed try
		released   int
		boot       string
		passes     int // passes of these ADDs
		want       string
	}{
		{"it began after this try, and released nothing", after, after, 0, "", 0, "another ADD's answer: nothing"},
		{"it began before this try, and released nothing", before, after, 0, "", 1, "young"},
		{"it ended before this try", before, before, 5, "", 1, "young"},
		{"it released something, which is taken again", before, after, 5, "", 1, "young"},
		{"it belongs to another boot", after, after, 0, "another", 1, "young"},
		{"it is from the future", time.Hour, time.Hour, 0, "", 1, "young"},
	} {
		n := newTestNode(t)
		n.fill(0)
		lock := n.lock()
		ended := make(chan outcome)
		for _, args := range []string{"", "IgnoreUnknown=1;IP=" + address(0)} {
			go func() { ended <- n.call(call{command: "ADD", id: "a" + args[:min(1, len(args))], args: args}) }()
		}
		cnitest.Until(n.t, "the plugins wait for the lock", func() bool { return awaited(t, lock) == 2 })
		last, now := readResult(lock), sinceBoot()
		last = result{BootID: last.BootID + row.boot, Begin: now + row.begin, End: now + row.end, Released: row.released, Text: "nothing"}
		if err := errors.Join(writeResult(lock, &last), lock.Close()); err != nil {
			t.Fatal(err)
		}
		for _, got := range []outcome{<-ended, <-ended} {
			if got.code == 0 || !strings.Contains(got.out, row.want) {
				t.Errorf("%s: %s", row.reason, got.out)
			}
		}
		if passes := n.result().Passes; passes != row.passes {
			t.Errorf("%s: %d passes", row.reason, passes)
		}
	}
}

// What happens while an ADD waits for another's pass, whose lock is in a file that is removed.
func TestWhileItWaits(t *testing.T) {
	free := func(n *testNode, _ *os.Process) error { return os.Remove(n.file(address(0))) }
	nothing := func(*testNode, *os.Process) error { return nil }
	const first = `"address": "10.9.0.2/24"`
	for _, row := range []struct {
		reason, gc string
		age        time.Duration // of the leaks
		hostLocal  string        // the beginning of a script that ends with the real one
		meanwhile  func(n *testNode, parent *os.Process) error
		want       string
	}{
		{"a DEL frees an address, and the pass nothing", "", 0, "", free, first},
		{"the same, and then host-local is killed", "", 0, "test -e FREED || kill -9 $$; ", free, "signal: killed"},
		{"it was freed before host-local had ended", "", 0, "test -e FREED && { BIN/host-local; c=$?; rm FREED; exit $c; }; ", nothing, first},
		{"its own time ends", `"timeout":"1s",`, old, "", nil, "waiting for another ADD's pass"},
		{"its parent ends, and nobody would read the address", "", old, "",
			func(_ *testNode, parent *os.Process) error { return parent.Kill() }, "the plugin that asked for an address has ended"},
		{"the other ADD ends, and this one makes a pass", "", old, "", nothing, first},
	} {
		n := newTestNode(t)
		n.fill(row.age)
		n.gc = strings.Replace(n.gc, "{", "{"+row.gc, 1)
		n.installIn(t.TempDir(), "hostlocal-gc-ipam")
		script := strings.NewReplacer("FREED", n.file(address(0)), "BIN", bin).Replace(row.hostLocal)
		mustWrite(t, n.bin+"/host-local", "#!/bin/sh\n"+script+"exec "+bin+"/host-local\n")
		n.write(n.dir+"/conf", n.config(), 0)
		lock, out := n.lock(), filepath.Join(n.dir, "out")
		parent := n.command(call{command: "ADD", id: "a", program: "/bin/sh"})
		parent.Args = []string{"sh", "-c", fmt.Sprintf("%s/hostlocal-gc-ipam <%s >%s & wait", n.bin, n.dir+"/conf", out)}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		cnitest.Until(t, "the plugin waits for the lock", func() bool { return awaited(t, lock) == 1 })
		if row.meanwhile != nil {
			if err := errors.Join(row.meanwhile(n, parent.Process), os.Remove(lock.Name()), lock.Close()); err != nil {
				t.Fatal(err)
			}
		}
		_ = parent.Wait() // it may be killed
		var said []byte
		cnitest.Until(t, "the plugin has said something", func() bool { said, _ = os.ReadFile(out); return len(said) > 0 })
		left := slices.Collect(maps.Values(n.reserved()))
		if !strings.Contains(string(said), row.want) || slices.Contains(left, "a") != strings.Contains(row.want, `"address"`) {
			t.Errorf("%s: it said %s; reserved for %v", row.reason, said, left)
		}
		_ = lock.Close() // it may be closed
	}
}

// awaited returns the number of processes that wait for a lock (proc(5), /proc/locks).
func awaited(t *testing.T, lock *os.File) int {
	t.Helper()
	info, err := lock.Stat()
	text, readErr := os.ReadFile("/proc/locks")
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	return len(regexp.MustCompile(fmt.Sprintf("-> FLOCK .*:%d ", info.Sys().(*syscall.Stat_t).Ino)).FindAll(text, -1))
}
