// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/go-cmp/cmp"
)

// hold takes the lock as the plugin does, and returns its release.
func hold(t *testing.T, s *Store) (unlock func()) {
	t.Helper()
	l, err := disk.NewFileLock(s.dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Lock(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// isFree reports whether the lock can be had right now.
func isFree(t *testing.T, s *Store) bool {
	f, err := os.Open(filepath.Join(s.dir(), "lock"))
	if err != nil {
		t.Error(err)
		return false
	}
	defer func() { _ = f.Close() }() // unlocks, too
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
	case nil:
		return true
	case syscall.EWOULDBLOCK:
	default:
		t.Errorf("flock: %v", err)
	}
	return false
}

// queued returns how many goroutines of this process are in the system call that
// waits for a lock.
func queued() int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	return strings.Count(string(buf), "disk.(*FileLock).Lock(")
}

// giveUp lets a release wait for the lock, ends its context, and checks what it
// says.
func giveUp(t *testing.T, s *Store, rs []Reservation) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type result struct {
		Releases
		error
	}
	got := make(chan result, 1)
	go func() {
		done, err := s.Release(ctx, rs...)
		got <- result{done, err}
	}()
	until(t, "the release waits", func() bool { return queued() > 0 })
	cancel()
	within(t, "giving up", func() {
		r := <-got
		for i, o := range r.Outcomes {
			if o != NotTried {
				t.Errorf("%v is %v, want not-tried", rs[i].IP, o)
			}
		}
		if !errors.Is(r.error, context.Canceled) || !strings.Contains(r.Error(), s.dir()) || !strings.Contains(r.Error(), "lock") {
			t.Errorf("Release: %v, want an error that names the folder and the lock", r.error)
		}
		if r.LockHeld != 0 || r.LongestHold != 0 || r.Errs != nil {
			t.Errorf("Release had no lock and says %+v", r.Releases)
		}
	})
}

// TestHazard18LockHeldForLong: the deadline ends the wait, and nothing is held
// afterwards (R8).
func TestHazard18LockHeldForLong(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	unlock := hold(t, s)

	within(t, "waiting until the deadline", func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		done, err := s.Release(ctx, rs...)
		if diff := cmp.Diff([]Outcome{NotTried, NotTried}, done.Outcomes); diff != "" {
			t.Errorf("Release (-want +got):\n%s", diff)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want %v", err, context.DeadlineExceeded)
		}
	})
	until(t, "the abandoned wait is in the system call", func() bool { return queued() == 1 })
	if got := left(t, s); len(got) != 2 {
		t.Errorf("left are %v, want all", got)
	}

	unlock()
	until(t, "the lock is free", func() bool { return isFree(t, s) })
	until(t, "nobody waits any more", func() bool { return len(s.turn) == 0 && queued() == 0 })
	if !isFree(t, s) {
		t.Error("the lock is held by nobody")
	}
	if got := left(t, s); len(got) != 2 {
		t.Errorf("left are %v, want all: who gave up must not release later", got)
	}
	within(t, "the next release", func() {
		if done, err := s.Release(t.Context(), rs...); err != nil || done.Outcomes[0] != Released || done.Outcomes[1] != Released {
			t.Errorf("the next release: %v, %v", done.Outcomes, err)
		}
	})
}

// TestHazard18GivingUpOften: however often a store gives up, one goroutine
// waits, and other stores are not held up by it.
func TestHazard18GivingUpOften(t *testing.T) {
	s, other := newStore(t), newStore(t)
	reserve(t, s, "10.0.0.1")
	reserve(t, other, "10.0.0.1")
	rs := list(t, s)
	unlock := hold(t, s)
	for range 50 {
		giveUp(t, s, rs)
		if n := queued(); n != 1 {
			t.Fatalf("%d wait for the lock, want 1", n)
		}
	}
	within(t, "a release in another network", func() {
		if done, err := other.Release(t.Context(), list(t, other)...); err != nil || done.Outcomes[0] != Released {
			t.Errorf("Release in another network: %v, %v", done.Outcomes, err)
		}
	})
	unlock()
	until(t, "nobody waits any more", func() bool { return len(s.turn) == 0 && queued() == 0 })
	if !isFree(t, s) {
		t.Error("the lock is held by nobody")
	}
}

// TestHazard18GivingUpAsItComes: the lock comes in the moment in which the
// caller gives up. Either way it is free in the end.
func TestHazard18GivingUpAsItComes(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	got := 0
	for range 200 {
		release := hold(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			unlock, err := s.lock(ctx)
			if err != nil {
				return
			}
			got++
			if isFree(t, s) {
				t.Error("the lock was given and is free")
			}
			if err := unlock(); err != nil {
				t.Error(err)
			}
		}()
		until(t, "it waits", func() bool { return queued() == 1 })
		go cancel()
		release()
		within(t, "waiting for the lock", func() { <-waited })
		until(t, "nobody waits any more", func() bool { return len(s.turn) == 0 })
		if !isFree(t, s) {
			t.Fatal("the lock is held by nobody")
		}
		cancel()
	}
	t.Logf("of 200 it got the lock %d times", got)
}

// TestReleaseWaits: a release that need not give up works when its turn comes,
// and waiting counts as holding in no figure.
func TestReleaseWaits(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	unlock := hold(t, s)
	var done Releases
	var err error
	released := make(chan struct{})
	go func() {
		defer close(released)
		done, err = s.Release(t.Context(), rs...)
	}()
	until(t, "the release waits", func() bool { return queued() == 1 })
	if got := left(t, s); len(got) != 1 {
		t.Error("it was released while somebody else held the lock")
	}
	since := time.Now()
	unlock()
	within(t, "the release", func() { <-released })
	if passed := time.Since(since); done.LockHeld > passed || done.LockHeld <= 0 || done.LongestHold != done.LockHeld {
		t.Errorf("it held the lock for %v, %v at once, and could have had it for %v", done.LockHeld, done.LongestHold, passed)
	}
	if err != nil || done.Outcomes[0] != Released {
		t.Errorf("Release: %v, %v", done.Outcomes, err)
	}
}

// TestReleaseHoldsTheLock: whoever asks between two releases finds the lock
// taken, and finds it free after a hold of maxHold: here each reservation takes
// that long, so that each has a hold of its own (R8).
func TestReleaseHoldsTheLock(t *testing.T) {
	s := newStore(t)
	var want []Outcome
	ip := netip.MustParseAddr("10.0.0.1")
	for range 5 {
		reserve(t, s, ip.String())
		ip = ip.Next()
		want = append(want, Released)
	}
	held, pauses := 0, 0
	// Done is asked by other goroutines too, but the first to ask after Err is
	// the pause between two holds.
	var pauseIsNext atomic.Bool
	ctx := hookContext{Context: t.Context()}
	ctx.err = func() error {
		if isFree(t, s) {
			t.Error("the lock is free in the middle of a release")
		}
		held++
		for start := time.Now(); time.Since(start) < maxHold; {
			runtime.Gosched()
		}
		pauseIsNext.Store(true)
		return nil
	}
	ctx.done = func() {
		if pauseIsNext.CompareAndSwap(true, false) {
			if !isFree(t, s) {
				t.Error("the lock is held in the pause between two holds")
			}
			pauses++
		}
	}
	done, err := s.Release(ctx, list(t, s)...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, done.Outcomes); diff != "" {
		t.Errorf("Release (-want +got):\n%s", diff)
	}
	if held != len(want) || pauses != len(want)-1 {
		t.Errorf("the lock was held at %d moments and let go of %d times, want %d and %d", held, pauses, len(want), len(want)-1)
	}
	if done.LongestHold < maxHold || done.LockHeld < time.Duration(len(want))*maxHold || done.LockHeld <= done.LongestHold {
		t.Errorf("it says that it held the lock for %v in all and %v at once", done.LockHeld, done.LongestHold)
	}
	if !isFree(t, s) {
		t.Error("the lock is still held")
	}
}

// TestReleaseLetsOthersIn: a release of many is done in several holds.
func TestReleaseLetsOthersIn(t *testing.T) {
	s := newStore(t)
	const n = 1000
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range n {
		write(t, at(s, ip.String()), fmt.Sprintf("id%d\r\neth0", i))
		ip = ip.Next()
	}
	done, err := s.Release(t.Context(), list(t, s)...)
	if err != nil {
		t.Fatal(err)
	}
	if done.LongestHold >= done.LockHeld {
		t.Errorf("%d were released in one hold of %v", n, done.LongestHold)
	}
	if got := left(t, s); got != nil {
		t.Errorf("%d are left", len(got))
	}
}

// TestReleaseWithoutLock: a lock that can't be had means that nothing is
// released, the error says why, and the next release can begin.
func TestReleaseWithoutLock(t *testing.T) {
	for _, row := range []struct {
		reason string
		spoil  func(t *testing.T, lock string)
		want   string
	}{
		{"a folder", mkdir, "not a regular file"},
		{"a pipe: opening it would wait for a writer", func(t *testing.T, lock string) { node(t, lock, syscall.S_IFIFO) }, "not a regular file"},
		{"a socket", func(t *testing.T, lock string) { node(t, lock, syscall.S_IFSOCK) }, "not a regular file"},
		{"a link to a pipe", func(t *testing.T, lock string) {
			node(t, lock+"-pipe", syscall.S_IFIFO)
			symlink(t, "lock-pipe", lock)
		}, "not a regular file"},
		{"a link to itself", func(t *testing.T, lock string) { symlink(t, "lock", lock) }, "too many levels"},
		{"a link into a folder that is missing", func(t *testing.T, lock string) { symlink(t, "/missing/lock", lock) }, "no such file"},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		lock := filepath.Join(s.dir(), "lock")
		row.spoil(t, lock)
		before := tree(t, s.DataDir())
		within(t, row.reason, func() {
			done, err := s.Release(t.Context(), rs...)
			if diff := cmp.Diff([]Outcome{NotTried, NotTried}, done.Outcomes); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), s.dir()) || !strings.Contains(err.Error(), "lock") {
				t.Errorf("Release: %v, want an error that names the folder and says %q: %s", err, row.want, row.reason)
			}
			if done.LockHeld != 0 || done.LongestHold != 0 {
				t.Errorf("there was no lock, and it was held for %v: %s", done.LockHeld, row.reason)
			}
		})
		if diff := cmp.Diff(before, tree(t, s.DataDir())); diff != "" {
			t.Errorf("something was touched: %s (-before +after):\n%s", row.reason, diff)
		}

		if err := os.RemoveAll(lock); err != nil {
			t.Fatal(err)
		}
		within(t, "the next release", func() {
			if done, err := s.Release(t.Context(), rs...); err != nil || done.Outcomes[0] != Released || done.Outcomes[1] != Released {
				t.Errorf("the next release: %v, %v: %s", done.Outcomes, err, row.reason)
			}
		})
	}
}

// TestReleaseFolderGoneBeforeLock: the folder goes away between the moment in
// which it is opened and the one in which its lock is. It is not made again.
func TestReleaseFolderGoneBeforeLock(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	var once atomic.Bool
	done, err := s.Release(hookContext{Context: t.Context(), done: func() {
		if once.CompareAndSwap(false, true) {
			if err := os.RemoveAll(s.dir()); err != nil {
				t.Error(err)
			}
		}
	}}, rs...)
	if o := done.Outcomes[0]; o == Released || o == Gone && err != nil || o != Gone && err == nil {
		t.Errorf("Release: %v, %v", done.Outcomes, err)
	}
	if _, err := os.Lstat(s.dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is back: %v", err)
	}
}
