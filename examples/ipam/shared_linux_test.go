// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
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
			t.Log(n.result(), n.said())
			n.keeps(held)
		})
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
