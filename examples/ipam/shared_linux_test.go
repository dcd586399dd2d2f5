// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// concurrently executes an ADD for each of many containers at once. It returns the addresses of the
// successful ones, and the errors of the others.
func (n *testNode) concurrently(count int, name, ipam string) (held map[string]netip.Addr, errs []error, took time.Duration) {
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
			ip, err := n.addAs(n.of(id), ipam)
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
	took = time.Since(begun)
	n.t.Logf("%s: %d of %d ADDs succeeded in %v", ipam, len(held), count, took.Round(time.Millisecond))
	return held, errs, took
}

// busy keeps every processor busy with two loops until the end of the test.
func busy(t *testing.T) {
	t.Helper()
	for range 2 * runtime.NumCPU() {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = loop.Process.Kill()
			_ = loop.Wait() // killed
		})
	}
}

// On a full network whose reservations all leaked, as many of many concurrent ADDs succeed as with
// host-local on an empty one, each with an address of its own, however busy the node is.
func TestHazard99ManyADDsOnLeaks(t *testing.T) {
	count := 200
	if testing.Short() {
		count = 60
	}
	for _, load := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy %t", load), func(t *testing.T) {
			bare, n := newTestNode(t), newTestNode(t)
			if load {
				busy(t)
			}
			want, _, _ := bare.concurrently(count, "bare", "host-local")
			for id := range want {
				if err := bare.delAs(id, "host-local"); err != nil {
					t.Error(err)
				}
			}
			n.fill(old)
			held, errs, _ := n.concurrently(count, "many", "hostlocal-gc-ipam")
			if len(held) < len(want) {
				t.Errorf("%d ADDs succeeded, and with host-local %d; among the errors: %v", len(held), len(want), errs[:min(3, len(errs))])
			}
			if passes := n.result().Passes; passes > 3 {
				t.Errorf("%d passes", passes)
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
	held, errs, took := n.concurrently(40, "many", "hostlocal-gc-ipam")
	if len(held) > 0 || len(n.reserved()) != addresses {
		t.Errorf("%d ADDs succeeded, %d reservations are left", len(held), len(n.reserved()))
	}
	shared := 0
	for _, err := range errs {
		if !strings.Contains(err.Error(), noneLeft) || !strings.Contains(err.Error(), "malformed") {
			t.Error(err)
		}
		if strings.Contains(err.Error(), "another ADD's answer") {
			shared++
		}
	}
	if passes := n.result().Passes; shared == 0 || passes > 1+int(took/passPause) {
		t.Errorf("%d ADDs used the answer of another, %d passes in %v", shared, passes, took)
	}
}

// lock takes the lock for passes, as another ADD does.
func (n *testNode) lock() *passLock {
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
		cnitest.Until(n.t, "the plugins wait for the lock", func() bool { return awaited(t, lock.file) == 2 })
		now := sinceBoot()
		if err := lock.write(&result{BootID: lock.boot + row.boot, Begin: now + row.begin, End: now + row.end, Released: row.released, Text: "nothing"}); err != nil {
			t.Fatal(err)
		}
		lock.unlock()
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

// An address that a DEL frees while an ADD waits is used, although the pass releases nothing. If
// host-local is killed in that try, there is an error.
func TestFreedMeanwhile(t *testing.T) {
	for _, killed := range []bool{false, true} {
		n := newTestNode(t)
		n.fill(0)
		n.installIn(t.TempDir(), "hostlocal-gc-ipam")
		lock := n.lock()
		ended := make(chan outcome)
		mustWrite(t, n.bin+"/host-local", fmt.Sprintf("#!/bin/sh\nif %t && test ! -e %s; then kill -9 $$; fi; exec %s/host-local\n", killed, n.file(address(0)), bin))
		go func() { ended <- n.call(call{command: "ADD", id: "a"}) }()
		cnitest.Until(n.t, "the plugin waits for the lock", func() bool { return awaited(t, lock.file) == 1 })
		n.mustRemove(n.file(address(0)))
		lock.unlock()
		if got := <-ended; (got.code == 0) == killed || killed != strings.Contains(errorMessage([]byte(got.out)), "killed") {
			t.Errorf("killed: %t, code %d: %s", killed, got.code, got.out)
		}
	}
}

// An ADD waits for another's pass until its own time is over. A lock file that was removed meanwhile
// is ignored: others have made and locked a new one. A plugin whose parent has ended does not try
// again: nobody would read the address.
func TestWaits(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	removed := n.lock()
	out := filepath.Join(n.dir, "out")
	n.write(n.dir+"/conf", n.config(), 0)
	orphan := n.command(call{command: "ADD", id: "orphan", program: "/bin/sh"})
	orphan.Args = []string{"sh", "-c", fmt.Sprintf("%s/hostlocal-gc-ipam <%s >%s & wait", n.bin, n.dir+"/conf", out)}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	cnitest.Until(t, "the plugin waits for the lock", func() bool { return awaited(t, removed.file) == 1 })
	if err := errors.Join(orphan.Process.Kill(), os.Remove(removed.file.Name())); err != nil {
		t.Fatal(err)
	}
	_ = orphan.Wait() // killed
	current := n.lock()
	removed.unlock()
	cnitest.Until(t, "the plugin waits for the new lock", func() bool { return awaited(t, current.file) == 1 })
	long := n.gc
	n.gc = strings.Replace(n.gc, "{", `{"timeout":"1s",`, 1)
	if got := n.call(call{command: "ADD", id: "late"}); got.code == 0 || !strings.Contains(got.out, "waiting for another ADD's pass") {
		t.Errorf("code %d: %s", got.code, got.out)
	}
	n.gc = long
	current.unlock()
	var said []byte
	cnitest.Until(t, "the orphan has said something", func() bool { said, _ = os.ReadFile(out); return len(said) > 0 })
	if left := n.reserved(); !strings.Contains(string(said), "the plugin that asked for an address has ended") || len(left) > 0 {
		t.Errorf("it said %s; reserved: %v", said, left)
	}
}

// A network recovers even if there is no room for the lock's file: the releases make room.
func TestNoRoomForTheLock(t *testing.T) {
	n := newTestNode(t)
	mustMkdir(t, n.dataDir())
	// The root, the network's directory, host-local's lock and its note of the last address.
	if err := syscall.Mount("small", n.dataDir(), "tmpfs", 0, fmt.Sprintf("nr_inodes=%d", addresses+4)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(n.dataDir(), syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	for _, name := range []string{"lock", "last_reserved_ip.0"} {
		n.write(filepath.Join(n.dataDir(), network, name), "", 0)
	}
	n.fill(old)
	if err := os.WriteFile(filepath.Join(n.dataDir(), "more"), nil, 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the test is of no use: %v", err)
	}
	if got := n.call(call{command: "ADD", id: "a"}); got.code != 0 {
		t.Error(got.out)
	}
}

// A whole /16 of leaks heals, beside ADDs of other containers.
func TestWholeSixteen(t *testing.T) {
	n := newTestNode(t)
	n.subnet = "10.9.0.0/16"
	count := 1<<16 - 3
	if testing.Short() { // the nightly run has all
		n.subnet, count = "10.9.0.0/21", 1<<11-3
	}
	for i := range count {
		n.reserve(fmt.Sprintf("10.9.%d.%d", (i+2)>>8, (i+2)&255), fmt.Sprintf("gone%d", i), old)
	}
	held, errs, took := n.concurrently(8, "many", "hostlocal-gc-ipam")
	if len(held) != 8 || len(n.reserved()) > 8 {
		t.Errorf("in %v %d ADDs succeeded, %d reservations are left: %v", took, len(held), len(n.reserved()), errs)
	}
}

// awaited returns the number of processes that wait for a lock (proc(5), /proc/locks).
func awaited(t *testing.T, lock *os.File) (count int) {
	t.Helper()
	info, err := lock.Stat()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	of := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, of) {
			count++
		}
	}
	return count
}
