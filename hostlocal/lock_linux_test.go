// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// isFree reports whether the lock can be taken.
func isFree(t *testing.T, s *Store) bool {
	f, err := os.Open(filepath.Join(dirOf(s), "lock"))
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

// A releasing is a call of Release in the background.
type releasing struct {
	done   chan struct{}
	result ReleaseResult
	err    error
}

func release(ctx context.Context, s *Store, rs []Reservation) *releasing {
	r := &releasing{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.result, r.err = s.Release(ctx, pointers(rs)...)
	}()
	return r
}

// ended reports whether Release has returned.
func (r *releasing) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// TestHazard18LockHeldForLong: the deadline ends the wait, and nothing is locked afterwards
// (R8). The bubble ends only after all goroutines have.
func TestHazard18LockHeldForLong(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	unlock := hold(t, dirOf(s))
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		for _, row := range []struct {
			reason string
			ctx    func(context.Context) (context.Context, context.CancelFunc)
			want   error
		}{
			{"a deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, limit)
			}, context.DeadlineExceeded},
			{"the caller gives up", func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(limit, cancel)
				return ctx, cancel
			}, context.Canceled},
		} {
			ctx, cancel := row.ctx(t.Context())
			start := time.Now()
			r := release(ctx, s, rs)
			<-r.done
			cancel()
			if got := time.Since(start); got != limit {
				t.Errorf("Release returned after %v, want %v: %s", got, limit, row.reason)
			}
			if diff := cmp.Diff(ReleaseResult{Outcomes: []Outcome{NotTried, NotTried}}, r.result); diff != "" {
				t.Errorf("Release: %s (-want +got):\n%s", row.reason, diff)
			}
			if !errors.Is(r.err, row.want) || !errors.Is(r.err, ErrLocked) {
				t.Errorf("Release: %v, want %v and %v: %s", r.err, ErrLocked, row.want, row.reason)
			}
			for _, want := range []string{dirOf(s), "2 not tried", "held by another process"} {
				if !strings.Contains(r.err.Error(), want) {
					t.Errorf("Release: %v, want an error that contains %q: %s", r.err, want, row.reason)
				}
			}
		}
	})
	unlock()
	if !isFree(t, s) {
		t.Error("the lock is still held")
	}
	if got := left(t, s); len(got) != 2 {
		t.Errorf("left are %v, want all: a Release that gave up must not release later", got)
	}
	if result, err := s.Release(t.Context(), pointers(rs)...); err != nil || result.Outcomes[0] != Released || result.Outcomes[1] != Released {
		t.Errorf("the next release: %v, %v", result.Outcomes, err)
	}
}

// TestHazard18OtherNetworksGoOn: the lock of one network is held. Reservations of the
// networks before and after it are released.
func TestHazard18OtherNetworksGoOn(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	for _, network := range []string{"a", "z"} {
		write(t, filepath.Join(addNetwork(t, s, network), "10.0.0.1"), "abc\r\neth0")
	}
	rs := list(t, s)
	unlock := hold(t, dirOf(s))
	defer unlock()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := release(ctx, s, rs)
		synctest.Wait()
		if diff := cmp.Diff([]string{"10.0.0.1"}, left(t, s)); diff != "" || r.ended() {
			t.Errorf("while it waits (-want +got):\n%s", diff)
		}
		cancel()
		<-r.done
		if diff := cmp.Diff([]Outcome{Released, NotTried, Released}, r.result.Outcomes); diff != "" {
			t.Errorf("Release (-want +got):\n%s", diff)
		}
		if !errors.Is(r.err, ErrLocked) || !errors.Is(r.err, context.Canceled) {
			t.Errorf("Release: %v", r.err)
		}
	})
}

// TestReleaseWaits: Release goes on when the lock is free, and the wait is not part of the
// time for which it held the lock.
func TestReleaseWaits(t *testing.T) {
	for _, row := range []struct{ held, atMost time.Duration }{{time.Second, maxPause}, {3 * time.Millisecond, minPause}} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1")
		rs := list(t, s)
		unlock := hold(t, dirOf(s))
		synctest.Test(t, func(t *testing.T) {
			r := release(t.Context(), s, rs)
			time.Sleep(row.held)
			if got := left(t, s); len(got) != 1 || r.ended() {
				t.Error("it was released while another process held the lock")
			}
			unlock()
			since := time.Now()
			<-r.done
			if waited := time.Since(since); waited > row.atMost {
				t.Errorf("it took %v to find the lock free, after it was held for %v", waited, row.held)
			}
			if r.result.LockHeld != 0 || r.result.LongestHold != 0 {
				t.Errorf("the lock was held for %v, %v at once, want no time", r.result.LockHeld, r.result.LongestHold)
			}
			if r.err != nil || r.result.Outcomes[0] != Released {
				t.Errorf("Release: %v, %v", r.result.Outcomes, r.err)
			}
		})
	}
}

// TestReleaseMakesProgress: after a long wait for the lock, the next pause is the shortest.
func TestReleaseMakesProgress(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	unlock := hold(t, dirOf(s))
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(time.Second, unlock)
		var holds []time.Time
		if _, err := s.Release(hookContext{Context: t.Context(), err: func() error {
			holds = append(holds, time.Now())
			time.Sleep(maxHold)
			return nil
		}}, pointers(rs)...); err != nil {
			t.Error(err)
		}
		if len(holds) != 2 || holds[1].Sub(holds[0]) != maxHold+minPause {
			t.Errorf("holds at %v, want a pause of %v between them", holds, minPause)
		}
	})
}

// TestLockCallsFail: any other error of the lock's system calls is returned as it is.
func TestLockCallsFail(t *testing.T) {
	s := newStore(t)
	d, err := s.open(network)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	noFile := &fileLock{path: l.path, fd: -1, st: l.st}
	if err := noFile.try(); !errors.Is(err, syscall.EBADF) {
		t.Errorf("locking without a descriptor: %v", err)
	}
	if err := noFile.unlock(); err == nil || err.Error() != "flock: bad file descriptor\nclose lock: bad file descriptor" {
		t.Errorf("unlocking without a descriptor: %v", err)
	}
	long := &fileLock{path: filepath.Join(dirOf(s), strings.Repeat("x", 300)), fd: l.fd, st: l.st}
	if err := long.check(); !errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, errLockReplaced) {
		t.Errorf("a lock whose path is too long: %v", err)
	}
	if err := errors.Join(l.check(), l.unlock()); err != nil {
		t.Error(err)
	}
}

// TestReleaseCanNotUnlock: if the lock can't be released, Release returns that error, and
// the outcomes.
func TestReleaseCanNotUnlock(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	lock := filepath.Join(dirOf(s), "lock")
	result, err := s.Release(hookContext{Context: t.Context(), err: atCall(1, func() {
		closeDescriptor(t, lock)
	})}, pointers(list(t, s))...)
	if result.Outcomes[0] != Released || !errors.Is(err, syscall.EBADF) {
		t.Errorf("Release: %v, %v, want it released and an error", result.Outcomes, err)
	}
}

// TestReleaseHoldsTheLock: the lock is held between two removals, and is free after maxHold
// (R8). Here each reservation takes that long, so each is released in a hold of its own.
func TestReleaseHoldsTheLock(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	rs := list(t, s)
	d, err := s.open(network)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	synctest.Test(t, func(t *testing.T) {
		held, pauses := 0, 0
		result, err := s.Release(hookContext{Context: t.Context(), err: func() error {
			if isFree(t, s) {
				t.Error("the lock is free during a hold")
			}
			if other, err := d.lock(); !errors.Is(err, errLockBusy) {
				t.Errorf("the lock can be taken twice: %v, %v", other, err)
			}
			held++
			time.Sleep(maxHold)
			return nil
		}, done: func() {
			if !isFree(t, s) {
				t.Error("the lock is held during a pause")
			}
			pauses++
		}}, pointers(rs)...)
		if err != nil {
			t.Error(err)
		}
		if held != 5 || pauses != 4 {
			t.Errorf("%d comparisons with the lock held and %d pauses, want 5 and 4", held, pauses)
		}
		want := ReleaseResult{
			Outcomes: []Outcome{Released, Released, Released, Released, Released},
			LockHeld: 5 * maxHold, LongestHold: maxHold,
		}
		if diff := cmp.Diff(want, result); diff != "" {
			t.Errorf("Release (-want +got):\n%s", diff)
		}
	})
	if !isFree(t, s) {
		t.Error("the lock is still held")
	}
}

// TestReleaseInOneHold: reservations that can be released within maxHold are released in one
// hold.
func TestReleaseInOneHold(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		ctx := hookContext{Context: t.Context(), done: func() { t.Error("there is a pause") }}
		if result, err := s.Release(ctx, pointers(rs)...); err != nil || result.Outcomes[2] != Released {
			t.Errorf("Release: %v, %v", result.Outcomes, err)
		}
	})
}

// TestReleaseHoldsSeveralLocks: LockHeld and LongestHold are those of all locks.
func TestReleaseHoldsSeveralLocks(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	write(t, filepath.Join(addNetwork(t, s, "other"), "10.0.0.1"), "abc\r\neth0")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		took := 2 * time.Millisecond
		result, err := s.Release(hookContext{Context: t.Context(), err: func() error {
			time.Sleep(took)
			took /= 2
			return nil
		}}, pointers(rs)...)
		want := ReleaseResult{
			Outcomes: []Outcome{Released, Released},
			LockHeld: 3 * time.Millisecond, LongestHold: 2 * time.Millisecond,
		}
		if diff := cmp.Diff(want, result); diff != "" || err != nil {
			t.Errorf("Release: %v (-want +got):\n%s", err, diff)
		}
	})
}

// TestReleaseUnlocksAfterPanic: the context is the caller's code, and may panic.
func TestReleaseUnlocksAfterPanic(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the caller's panic was lost")
			}
		}()
		_, _ = s.Release(hookContext{Context: t.Context(), err: func() error { panic("out of ink") }}, pointers(rs)...)
	}()
	if !isFree(t, s) {
		t.Error("the lock is still held")
	}
}

// TestReleaseWithoutLock: if the lock can't be taken, nothing is released and the error says
// why. Other networks, and later calls, are not affected.
func TestReleaseWithoutLock(t *testing.T) {
	target := func(name string) func(t *testing.T, lock string) {
		return func(t *testing.T, lock string) { symlink(t, name, lock) }
	}
	for _, row := range []struct {
		reason string
		spoil  func(t *testing.T, lock string)
		want   string
	}{
		{"a directory", mkdir, "a directory"},
		{"a pipe: opening it would wait for a writer", func(t *testing.T, lock string) { node(t, lock, syscall.S_IFIFO) }, "not a regular file"},
		{"a socket", func(t *testing.T, lock string) { node(t, lock, syscall.S_IFSOCK) }, "not a regular file"},
		{"a link to a file outside, which would be locked instead (R7)", func(t *testing.T, lock string) {
			outside := filepath.Join(t.TempDir(), "lock")
			write(t, outside, "")
			symlink(t, outside, lock)
		}, "not a regular file"},
		{"a link to a pipe", func(t *testing.T, lock string) {
			node(t, lock+"-pipe", syscall.S_IFIFO)
			symlink(t, "lock-pipe", lock)
		}, "not a regular file"},
		{"a link to itself", target("lock"), "not a regular file"},
		{"a link to a missing file, which would be created", target("missing"), "not a regular file"},
		{"a link into a missing directory", target("/missing/lock"), "not a regular file"},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2")
		write(t, filepath.Join(addNetwork(t, s, "z"), "10.0.0.1"), "abc\r\neth0")
		rs := list(t, s)
		lock := filepath.Join(dirOf(s), "lock")
		row.spoil(t, lock)
		before := tree(t, dirOf(s))
		within(t, row.reason, func() {
			result, err := s.Release(t.Context(), pointers(rs)...)
			if diff := cmp.Diff([]Outcome{NotTried, NotTried, Released}, result.Outcomes); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), dirOf(s)) {
				t.Errorf("Release: %v, want an error that names the directory and contains %q: %s", err, row.want, row.reason)
			}
		})
		if diff := cmp.Diff(before, tree(t, dirOf(s))); diff != "" {
			t.Errorf("something was touched: %s (-before +after):\n%s", row.reason, diff)
		}

		if err := os.RemoveAll(lock); err != nil {
			t.Fatal(err)
		}
		within(t, "the next release", func() {
			result, err := s.Release(t.Context(), pointers(rs)...)
			if diff := cmp.Diff([]Outcome{Released, Released, Gone}, result.Outcomes); diff != "" || err != nil {
				t.Errorf("the next release: %v: %s (-want +got):\n%s", err, row.reason, diff)
			}
		})
	}
}

// TestHazard47LockReplacedWhileWaiting: the lock that Release waits for is removed, and the
// plugin creates and takes a new one. When the old one is free, nothing is released, because
// it excludes no other process.
func TestHazard47LockReplacedWhileWaiting(t *testing.T) {
	for _, row := range []struct {
		reason  string
		replace bool
	}{
		{"removed, and created and locked by an ADD", true},
		{"removed, and created by Release", false},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1")
		rs := list(t, s)
		unlock := hold(t, dirOf(s))
		synctest.Test(t, func(t *testing.T) {
			r := release(t.Context(), s, rs)
			synctest.Wait()
			removeLock(t, s)
			if !row.replace {
				<-r.done
				unlock()
				if r.err != nil || r.result.Outcomes[0] != Released {
					t.Errorf("Release: %v, %v: %s", r.result.Outcomes, r.err, row.reason)
				}
				return
			}
			second := hold(t, dirOf(s))
			unlock()
			time.Sleep(time.Second)
			if r.ended() {
				t.Errorf("Release: %v, %v while the directory's lock is held: %s", r.result.Outcomes, r.err, row.reason)
			}
			second()
			<-r.done
			if r.err != nil || r.result.Outcomes[0] != Released {
				t.Errorf("Release: %v, %v: %s", r.result.Outcomes, r.err, row.reason)
			}
		})
		if !isFree(t, s) {
			t.Error("the lock is still held")
		}
	}
}

// openLock opens the lock as Release does, without taking it.
func openLock(t *testing.T, d dir) *fileLock {
	l, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(l.fd, syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHazard47LockReplacedBeforeLocking: the lock is replaced after it is opened and before it
// is locked.
func TestHazard47LockReplacedBeforeLocking(t *testing.T) {
	s := newStore(t)
	d, err := s.open(network)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, row := range []struct {
		reason string
		do     func()
		want   error
	}{
		{"nothing happens", func() {}, nil},
		{"removed", func() { removeLock(t, s) }, errLockReplaced},
		{"created again", func() {
			removeLock(t, s)
			write(t, filepath.Join(dirOf(s), "lock"), "")
		}, errLockReplaced},
		{"another file was moved over it", func() {
			write(t, filepath.Join(dirOf(s), "new"), "")
			move(t, filepath.Join(dirOf(s), "new"), filepath.Join(dirOf(s), "lock"))
		}, errLockReplaced},
		{"a link to the same file", func() {
			move(t, filepath.Join(dirOf(s), "lock"), filepath.Join(s.DataDir(), "old"))
			symlink(t, "../old", filepath.Join(dirOf(s), "lock"))
		}, errLockReplaced},
	} {
		for _, locked := range []bool{false, true} {
			l := openLock(t, d)
			if locked {
				if err := l.try(); err != nil {
					t.Fatal(err)
				}
			}
			row.do()
			if got := l.check(); !errors.Is(got, row.want) {
				t.Errorf("check: %v, want %v: %s", got, row.want, row.reason)
			}
			if got := l.try(); (got == nil) != (row.want == nil) || got != nil && got != errLockReplaced {
				t.Errorf("try: %v, want an error only if the lock was replaced: %s", got, row.reason)
			}
			if err := l.unlock(); err != nil {
				t.Error(err)
			}
			if err := os.RemoveAll(filepath.Join(dirOf(s), "lock")); err != nil {
				t.Fatal(err)
			}
		}
	}

	l := openLock(t, d)
	defer func() { _ = l.unlock() }()
	l.st.Dev++
	if err := l.check(); !errors.Is(err, errLockReplaced) {
		t.Errorf("check: %v for the same inode number on another file system, want %v", err, errLockReplaced)
	}
}

// TestHazard47LockReplacedWhileHeld: the lock that Release holds is removed. Then an ADD can
// lock a new one, so Release must take that one before it goes on.
func TestHazard47LockReplacedWhileHeld(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		var unlock func()
		r := release(hookContext{Context: t.Context(), err: atCall(2, func() {
			removeLock(t, s)
			unlock = hold(t, dirOf(s)) // an ADD
		})}, s, rs)
		time.Sleep(time.Second)
		if r.ended() {
			t.Errorf("Release: %v, %v while the directory's lock is held", r.result.Outcomes, r.err)
		}
		if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.3"}, left(t, s)); diff != "" {
			t.Errorf("reservations left while the directory's lock is held (-want +got):\n%s", diff)
		}
		unlock()
		<-r.done
		if diff := cmp.Diff([]Outcome{Released, Released, Released}, r.result.Outcomes); diff != "" || r.err != nil {
			t.Errorf("Release: %v (-want +got):\n%s", r.err, diff)
		}
	})
}

// TestHazard47LockReplacedForEver: the lock is removed again and again. Release gives up if
// that happens before every removal, and goes on while it makes progress.
func TestHazard47LockReplacedForEver(t *testing.T) {
	const n = 7
	for _, row := range []struct {
		reason   string
		when     func(call int) bool
		released int
		err      error
	}{
		{"before every removal", func(int) bool { return true }, 0, ErrLocked},
		{"before every removal but the first", func(call int) bool { return call > 1 }, 1, ErrLocked},
		{"before every second removal", func(call int) bool { return call%2 == 1 }, n, nil},
	} {
		s := newStore(t)
		want := slices.Repeat([]Outcome{NotTried}, n)
		for i := range n {
			reserve(t, s, fmt.Sprint("10.0.0.", i+1))
			if i < row.released {
				want[i] = Released
			}
		}
		rs := list(t, s)
		calls := 0
		var result ReleaseResult
		var err error
		synctest.Test(t, func(t *testing.T) {
			result, err = s.Release(hookContext{Context: t.Context(), err: func() error {
				if calls++; row.when(calls) {
					removeLock(t, s)
				}
				return nil
			}}, pointers(rs)...)
		})
		if diff := cmp.Diff(want, result.Outcomes); diff != "" {
			t.Errorf("Release: %s (-want +got):\n%s", row.reason, diff)
		}
		if !errors.Is(err, row.err) || err != nil && !strings.Contains(err.Error(), "removed or replaced") {
			t.Errorf("Release: %v, want %v: %s", err, row.err, row.reason)
		}
	}
}

// TestReleaseDirectoryRemoved: the directory is removed while Release runs, before or after
// it takes the lock. Release does not create it again, and its reservations are Gone.
func TestReleaseDirectoryRemoved(t *testing.T) {
	for _, row := range []struct {
		reason string
		waits  bool
	}{
		{"while it waits for the lock", true},
		{"while it holds the lock", false},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		remove := func() {
			if err := os.RemoveAll(dirOf(s)); err != nil {
				t.Error(err)
			}
		}
		want := []Outcome{Gone, Gone}
		synctest.Test(t, func(t *testing.T) {
			ctx := hookContext{Context: t.Context()}
			if row.waits {
				defer hold(t, dirOf(s))()
			} else {
				want[0] = Released
				ctx.err = atCall(2, remove)
			}
			r := release(ctx, s, rs)
			synctest.Wait()
			if row.waits {
				remove()
			}
			<-r.done
			if diff := cmp.Diff(want, r.result.Outcomes); diff != "" || r.err != nil {
				t.Errorf("Release: %v: %s (-want +got):\n%s", r.err, row.reason, diff)
			}
		})
		if _, err := os.Lstat(dirOf(s)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory was created again: %v: %s", err, row.reason)
		}
	}
}

// TestReleaseTriesAllLocks: a lock that is held for ever does not keep Release from taking
// another one that is busy for a short time, and Release gives up after maxLockWait.
func TestReleaseTriesAllLocks(t *testing.T) {
	dir := t.TempDir()
	hold := func(network string) *os.File {
		if err := os.Mkdir(filepath.Join(dir, network), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, network, "10.0.0.2"), "dead\r\neth0")
		f, err := os.OpenFile(filepath.Join(dir, network, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		return f
	}
	stuck, busy := hold("a"), hold("b")
	defer stuck.Close()
	s := New(dir)
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(50*time.Millisecond, func() { _ = busy.Close() }) // an ADD ends
		begun := time.Now()
		result, err := s.Release(t.Context(), pointers(rs)...)
		if diff := cmp.Diff([]Outcome{NotTried, Released}, result.Outcomes); diff != "" || !errors.Is(err, ErrLocked) {
			t.Errorf("Release: %v (-want +got):\n%s", err, diff)
		}
		if waited := time.Since(begun); waited < maxLockWait || waited > maxLockWait+time.Second {
			t.Errorf("it gave up after %v, want %v", waited, maxLockWait)
		}
	})
}

// A process that is started meanwhile does not inherit the lock, which it would hold for as long
// as it lives. A lock that is made has the plugin's mode.
func TestLockIsNotInherited(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	path := filepath.Join(dirOf(s), "lock")
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	d := openedDir(t, s)
	lock, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.unlock() }()
	if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(lock.fd), syscall.F_GETFD, 0); errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Errorf("the flags of its descriptor are %#x, %v", flags, errno)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("its file: %v, %v", info, err)
	}
}

// A lock that was busy at first is no error of a release that took it later and then ended with
// its context.
func TestReleaseErrorOfTheLastTry(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	unlock := hold(t, dirOf(s))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, unlock)
		slow := hookContext{Context: ctx, err: func() error { // the hold ends after one reservation, and so does the context
			err := ctx.Err()
			time.Sleep(maxHold + time.Millisecond)
			cancel()
			return err
		}}
		_, err := s.Release(slow, append(pointers(rs), pointers(rs)...)...)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrLocked) {
			t.Errorf("got %v, want the end of the context alone", err)
		}
	})
}

// TestReleaseProgressOfAnotherNetwork: while one network makes progress, however slowly, the
// lock of another one is waited for.
func TestReleaseProgressOfAnotherNetwork(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	write(t, filepath.Join(addNetwork(t, s, "a"), "10.0.0.1"), "dead\r\neth0")
	rs := list(t, s)
	unlock := hold(t, filepath.Join(s.DataDir(), "a"))
	synctest.Test(t, func(t *testing.T) {
		holds := 0
		ctx := hookContext{Context: t.Context(), err: func() error { // before each removal
			if holds++; holds <= 2 {
				time.Sleep(maxLockWait * 6 / 10)
			}
			if holds == 2 { // the last one of the other network
				time.AfterFunc(time.Second, unlock)
			}
			return nil
		}}
		result, err := s.Release(ctx, pointers(rs)...)
		if diff := cmp.Diff([]Outcome{Released, Released, Released}, result.Outcomes); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}
