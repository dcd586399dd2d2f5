// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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

// isFree reports whether the lock can be taken right now.
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

// ended reports whether it has returned.
func (r *releasing) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// TestHazard18LockHeldForLong: the deadline ends the wait, and nothing is held
// afterwards (R8). The bubble ends when all goroutines have.
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
				t.Errorf("it came back after %v, want %v: %s", got, limit, row.reason)
			}
			if diff := cmp.Diff(ReleaseResult{Outcomes: []Outcome{NotTried, NotTried}}, r.result); diff != "" {
				t.Errorf("Release: %s (-want +got):\n%s", row.reason, diff)
			}
			if !errors.Is(r.err, row.want) || !errors.Is(r.err, ErrLocked) {
				t.Errorf("Release: %v, want %v and %v: %s", r.err, ErrLocked, row.want, row.reason)
			}
			for _, want := range []string{dirOf(s), "2 not tried", "held by another process"} {
				if !strings.Contains(r.err.Error(), want) {
					t.Errorf("Release: %v, want an error that says %q: %s", r.err, want, row.reason)
				}
			}
		}
	})
	unlock()
	if !isFree(t, s) {
		t.Error("the lock is held by nobody")
	}
	if got := left(t, s); len(got) != 2 {
		t.Errorf("left are %v, want all: who gave up must not release later", got)
	}
	if result, err := s.Release(t.Context(), pointers(rs)...); err != nil || result.Outcomes[0] != Released || result.Outcomes[1] != Released {
		t.Errorf("the next release: %v, %v", result.Outcomes, err)
	}
}

// TestHazard18OtherNetworksGoOn: the reservations of a network whose lock is
// held are left, and those of the networks before and after it are not.
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

// TestReleaseWaits: a release that need not give up works when the lock is free,
// and waiting counts as holding in no figure.
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
				t.Error("it was released while somebody else held the lock")
			}
			unlock()
			since := time.Now()
			<-r.done
			if waited := time.Since(since); waited > row.atMost {
				t.Errorf("it took %v to see that the lock is free, after it was held for %v", waited, row.held)
			}
			if r.result.LockHeld != 0 || r.result.LongestHold != 0 {
				t.Errorf("holding took no time here, and it says %v, %v at once", r.result.LockHeld, r.result.LongestHold)
			}
			if r.err != nil || r.result.Outcomes[0] != Released {
				t.Errorf("Release: %v, %v", r.result.Outcomes, r.err)
			}
		})
	}
}

// TestReleaseGetsOn: who has waited long for the lock goes on with the shortest pause
// when it gets on.
func TestReleaseGetsOn(t *testing.T) {
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
			t.Errorf("holds at %v, want a pause of %v between two", holds, minPause)
		}
	})
}

// TestLockCallsFail: what the lock's system calls meet beside a lock that is held, or
// removed, is told as it is, and is no lock.
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
		t.Errorf("giving back without a descriptor: %v", err)
	}
	long := &fileLock{path: filepath.Join(dirOf(s), strings.Repeat("x", 300)), fd: l.fd, st: l.st}
	if err := long.check(); !errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, errLockReplaced) {
		t.Errorf("a lock that can't be looked at: %v", err)
	}
	if err := errors.Join(l.check(), l.unlock()); err != nil {
		t.Error(err)
	}
}

// TestReleaseCanNotUnlock: that the lock could not be given back is told beside what
// was released.
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

// TestReleaseHoldsTheLock: whoever asks between two releases finds the lock
// taken, and finds it free after a hold of maxHold: here each reservation takes
// that long, so that each has a hold of its own (R8).
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
				t.Error("the lock is free in the middle of a release")
			}
			if other, err := d.lock(); !errors.Is(err, errLockBusy) {
				t.Errorf("another release has the lock, too: %v, %v", other, err)
			}
			held++
			time.Sleep(maxHold)
			return nil
		}, done: func() {
			if !isFree(t, s) {
				t.Error("the lock is held in the pause between two holds")
			}
			pauses++
		}}, pointers(rs)...)
		if err != nil {
			t.Error(err)
		}
		if held != 5 || pauses != 4 {
			t.Errorf("the lock was held at %d moments and given back %d times, want 5 and 4", held, pauses)
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

// TestReleaseInOneHold: what can be released in the time of a hold is released in
// one.
func TestReleaseInOneHold(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		ctx := hookContext{Context: t.Context(), done: func() { t.Error("a pause between two holds") }}
		if result, err := s.Release(ctx, pointers(rs)...); err != nil || result.Outcomes[2] != Released {
			t.Errorf("Release: %v, %v", result.Outcomes, err)
		}
	})
}

// TestReleaseHoldsSeveralLocks: the figures are of all locks together.
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

// TestReleaseUnlocksAfterPanic: the context is the caller's code.
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

// TestReleaseLetsOthersIn: a release of many is done in several holds.
func TestReleaseLetsOthersIn(t *testing.T) {
	s := newStore(t)
	const n = 1000
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range n {
		write(t, at(s, ip.String()), fmt.Sprintf("id%d\r\neth0", i))
		ip = ip.Next()
	}
	result, err := s.Release(t.Context(), pointers(list(t, s))...)
	if err != nil {
		t.Fatal(err)
	}
	if result.LongestHold >= result.LockHeld {
		t.Errorf("%d were released in one hold of %v", n, result.LongestHold)
	}
	if got := left(t, s); got != nil {
		t.Errorf("%d are left", len(got))
	}
}

// TestReleaseWithoutLock: a lock that can't be taken means that nothing is
// released, the error says why, and other networks and the next release go on.
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
		{"a link to a file that is missing, which would be made", target("missing"), "not a regular file"},
		{"a link into a directory that is missing", target("/missing/lock"), "not a regular file"},
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
				t.Errorf("Release: %v, want an error that names the directory and says %q: %s", err, row.want, row.reason)
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

// TestHazard47LockReplacedWhileWaiting: the lock that Release waits for is
// removed, and the plugin makes and takes a new one. When the old one is given
// back nothing is released: it excludes nobody.
func TestHazard47LockReplacedWhileWaiting(t *testing.T) {
	for _, row := range []struct {
		reason  string
		replace bool
	}{
		{"removed, and made anew by an ADD that has it locked", true},
		{"removed, and Release makes it anew", false},
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

// openLock opens the lock as Release does, and does not take it.
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

// TestHazard47LockReplacedAsItComes: the lock is replaced between the moments in
// which it is opened and in which it is locked.
func TestHazard47LockReplacedAsItComes(t *testing.T) {
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
		{"made anew", func() {
			removeLock(t, s)
			write(t, filepath.Join(dirOf(s), "lock"), "")
		}, errLockReplaced},
		{"another file was moved over it", func() {
			write(t, filepath.Join(dirOf(s), "new"), "")
			move(t, filepath.Join(dirOf(s), "new"), filepath.Join(dirOf(s), "lock"))
		}, errLockReplaced},
		{"a link to the very file", func() {
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
				t.Errorf("try: %v, want it refused if it was replaced: %s", got, row.reason)
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
		t.Errorf("check: %v of a file with the number on another file system, want %v", err, errLockReplaced)
	}
}

// TestHazard47LockReplacedWhileHeld: the lock that Release holds is removed.
// From then on an ADD can lock a new one, so nothing more is released before
// Release has that one.
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
			t.Errorf("what is left while the directory's lock is held (-want +got):\n%s", diff)
		}
		unlock()
		<-r.done
		if diff := cmp.Diff([]Outcome{Released, Released, Released}, r.result.Outcomes); diff != "" || r.err != nil {
			t.Errorf("Release: %v (-want +got):\n%s", r.err, diff)
		}
	})
}

// TestHazard47LockReplacedForEver: somebody removes the lock again and again.
// Release gives up if that is before every removal, and not while it gets on.
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

// TestReleaseDirectoryRemoved: the directory goes away while Release is at work,
// before it has the lock and after. It is not made again, and what was in it is
// gone.
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
			t.Errorf("the directory is back: %v: %s", err, row.reason)
		}
	}
}

// TestReleaseTakesTurns: a network whose lock is held for good does not starve
// one whose lock is busy for a moment, and the wait for it ends by itself.
func TestReleaseTakesTurns(t *testing.T) {
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
