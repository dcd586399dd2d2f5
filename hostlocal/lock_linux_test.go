// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// isFree reports whether the lock can be taken.
func isFree(t *testing.T, s *Store) bool {
	f, err := os.Open(lockOf(s))
	if err != nil {
		t.Error(err)
		return false
	}
	defer func() { _ = f.Close() }() // unlocks, too
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("flock: %v", err)
	}
	return err == nil
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

// want waits for the end, and fails the test unless there are these outcomes, and no error.
func (r *releasing) want(t *testing.T, what string, outcomes ...Outcome) {
	t.Helper()
	<-r.done
	diff(t, what, outcomes, r.result.Outcomes)
	if r.err != nil {
		t.Errorf("%s: %v", what, r.err)
	}
}

// TestHazard18LockIsHeld: the end of the context ends the wait, and nothing is locked afterwards
// (R8), even if the lock is free by then. Without an end, the reservations of other networks are
// released, and Release gives up ten seconds after the last of these (R13).
func TestHazard18LockIsHeld(t *testing.T) {
	t.Run("until the context ends", func(t *testing.T) {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		other := addNetwork(t, s, "a", "10.0.0.1")
		rs := list(t, s)
		defer hold(t, other)()
		unlock := hold(t, dirOf(s))
		synctest.Test(t, func(t *testing.T) {
			const limit = time.Second
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			start := time.Now()
			result, err := s.Release(hookContext{Context: ctx, done: func() {
				if time.Since(start) > limit-maxPause {
					<-ctx.Done()
					unlock()
					unlock = func() {}
				}
			}}, pointers(rs)...)
			if got := time.Since(start); got != limit {
				t.Errorf("Release returned after %v, want %v", got, limit)
			}
			diff(t, "Release", ReleaseResult{Outcomes: []Outcome{NotTried, NotTried, NotTried}, Errs: make([]error, 3)}, result)
			why := fmt.Sprintf(" not tried: %v: %v: %v", ErrLocked, errLockBusy, context.DeadlineExceeded)
			for _, want := range []string{dirOf(s) + ", with 2" + why, other + ", with 1" + why} {
				if !errors.Is(err, ErrLocked) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
					t.Errorf("Release: %v, want an error that contains %q", err, want)
				}
			}
		})
		if !isFree(t, s) {
			t.Error("the lock is still held")
		}
		diff(t, "left", files(rs), files(list(t, s)))
	})
	t.Run("for ever, and that of another network for some time", func(t *testing.T) {
		s := newStore(t, "10.0.0.1")
		busy := addNetwork(t, s, "a", "10.0.0.1")
		addNetwork(t, s, "z", "10.0.0.1")
		rs := list(t, s)
		defer hold(t, dirOf(s))()
		unlock := hold(t, busy)
		synctest.Test(t, func(t *testing.T) {
			const add = 9 * time.Second
			time.AfterFunc(add, unlock)
			start := time.Now()
			r := release(t.Context(), s, rs)
			synctest.Wait()
			diff(t, "while it waits", []string{"a 10.0.0.1", "podnet 10.0.0.1"}, files(list(t, s)))
			<-r.done
			diff(t, "Release", []Outcome{Released, NotTried, Released}, r.result.Outcomes)
			if !errors.Is(r.err, ErrLocked) || strings.Contains(r.err.Error(), busy) {
				t.Errorf("Release: %v", r.err)
			}
			if waited := time.Since(start).Round(time.Second); waited != add+10*time.Second {
				t.Errorf("it gave up after %v", waited)
			}
		})
	})
}

// TestLockCallsFail: errors of the lock's system calls are returned as they are.
func TestLockCallsFail(t *testing.T) {
	s := newStore(t)
	l, err := openedDir(t, s).lock()
	must(t, err)
	noFile := &fileLock{path: l.path, fd: -1, st: l.st}
	if err := noFile.unlock(); err == nil || err.Error() != "flock: bad file descriptor\nclose lock: bad file descriptor" {
		t.Errorf("unlocking without a descriptor: %v", err)
	}
	long := &fileLock{path: filepath.Join(dirOf(s), strings.Repeat("x", 300)), fd: l.fd, st: l.st}
	if err := long.check(); !errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, errLockReplaced) {
		t.Errorf("a lock whose path is too long: %v", err)
	}
	must(t, l.check(), l.unlock())
}

// TestReleaseCanNotUnlock: if the lock can't be released, Release returns that error, and
// the outcomes, and does not try the network again.
func TestReleaseCanNotUnlock(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		result, err := s.Release(hookContext{Context: t.Context(), err: atCall(1, func() {
			for fd, path := range descriptors(t) {
				if path == lockOf(s) {
					must(t, syscall.Close(fd))
				}
			}
			time.Sleep(maxHold)
		})}, pointers(rs)...)
		diff(t, "Release", []Outcome{Released, NotTried}, result.Outcomes)
		if !errors.Is(err, syscall.EBADF) {
			t.Errorf("Release: %v, want an error of the lock", err)
		}
	})
}

// TestHazard18APassHoldsTheLock: the lock is held during a removal, and is free after maxHold (R8).
// The wait for a lock grows, and is not part of the time for which it was held. After it the
// pause is the shortest again.
func TestHazard18APassHoldsTheLock(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	rs := list(t, s)
	d := openedDir(t, s)
	unlock := hold(t, dirOf(s))
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(3*time.Millisecond, unlock)
		const ms = time.Millisecond
		sleeps := []time.Duration{0, 0, ms, 2 * ms, ms, ms} // before and after each comparison
		var at []time.Duration
		start := time.Now()
		result, err := s.Release(hookContext{Context: t.Context(), err: func() error {
			if isFree(t, s) {
				t.Error("the lock is free during a hold")
			}
			if other, err := d.lock(); !errors.Is(err, errLockBusy) {
				t.Errorf("the lock can be taken twice: %v, %v", other, err)
			}
			at = append(at, time.Since(start))
			time.Sleep(sleeps[len(at)-1])
			return nil
		}, done: func() {
			if len(at) > 0 && !isFree(t, s) {
				t.Error("the lock is held during a pause")
			}
		}}, pointers(rs)...)
		must(t, err)
		at = append(at, time.Since(start))
		const free = minPause + 2*minPause + 4*minPause // the first try after the plugin's 3 ms
		diff(t, "times", []time.Duration{free, free, free, free + ms, free + 3*ms + minPause, free + 4*ms + minPause,
			free + 5*ms + minPause}, at)
		diff(t, "Release", ReleaseResult{
			Outcomes: []Outcome{Released, Released, Released}, Errs: make([]error, 3), LockHeld: 5 * ms, LongestHold: 3 * ms,
		}, result)
	})
	if !isFree(t, s) {
		t.Error("the lock is still held")
	}
}

// TestReleaseUnlocksAfterPanic: the context is the caller's code, and may panic.
func TestReleaseUnlocksAfterPanic(t *testing.T) {
	s := newStore(t, "10.0.0.1")
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
	for _, row := range []struct {
		reason string
		spoil  func(t *testing.T, lock string)
		want   string
	}{
		{"a directory", mkdir, "a directory"},
		{"a pipe: opening it would wait for a writer", func(t *testing.T, lock string) { node(t, lock, syscall.S_IFIFO) }, "not a regular file"},
		{"a link to a file outside, which would be locked instead (R7)", func(t *testing.T, lock string) {
			outside := filepath.Join(t.TempDir(), "lock")
			write(t, outside, "")
			symlink(t, outside, lock)
		}, "not a regular file"},
		{"a link to nothing, which would be created", func(t *testing.T, lock string) { symlink(t, "missing", lock) }, "not a regular file"},
	} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		addNetwork(t, s, "z", "10.0.0.1")
		rs := list(t, s)
		row.spoil(t, lockOf(s))
		before := tree(t, dirOf(s))
		result, err := s.Release(t.Context(), pointers(rs)...)
		diff(t, row.reason, []Outcome{NotTried, NotTried, Released}, result.Outcomes)
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), dirOf(s)) {
			t.Errorf("Release: %v, want an error that names the directory and contains %q: %s", err, row.want, row.reason)
		}
		diff(t, row.reason, before, tree(t, dirOf(s)))
		must(t, os.RemoveAll(lockOf(s)))
		release(t.Context(), s, rs).want(t, "the next release", Released, Released, Gone)
	}
}

// TestHazard47LockReplacedBeforeLocking: the lock is replaced after it is opened and before it
// is locked.
func TestHazard47LockReplacedBeforeLocking(t *testing.T) {
	s := newStore(t)
	d := openedDir(t, s)
	for _, row := range []struct {
		reason string
		do     func()
		want   error
	}{
		{"nothing happens", func() {}, nil},
		{"removed", func() { removeLock(t, s) }, errLockReplaced},
		{"another file was moved over it", func() {
			write(t, lockOf(s)+"-new", "")
			move(t, lockOf(s)+"-new", lockOf(s))
		}, errLockReplaced},
		{"a link to the same file", func() {
			move(t, lockOf(s), filepath.Join(s.DataDir(), "old"))
			symlink(t, "../old", lockOf(s))
		}, errLockReplaced},
	} {
		for _, locked := range []bool{false, true} {
			l, err := d.lock()
			must(t, err)
			if !locked {
				must(t, syscall.Flock(l.fd, syscall.LOCK_UN))
			}
			row.do()
			if got := l.check(); !errors.Is(got, row.want) {
				t.Errorf("check: %v, want %v: %s", got, row.want, row.reason)
			}
			if got := l.try(); !errors.Is(got, row.want) {
				t.Errorf("try: %v, want %v: %s", got, row.want, row.reason)
			}
			must(t, l.unlock(), os.RemoveAll(lockOf(s)))
		}
	}
	l, err := d.lock()
	must(t, err)
	l.st.Dev++
	if err := l.check(); !errors.Is(err, errLockReplaced) {
		t.Errorf("check: %v for the same inode number on another file system, want %v", err, errLockReplaced)
	}
	must(t, l.unlock())
}

// TestHazard47LockReplacedWhileHeld: the lock that Release holds is removed. Then an ADD can
// lock a new one, so Release must take that one before it goes on.
func TestHazard47LockReplacedWhileHeld(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		var unlock func()
		r := release(hookContext{Context: t.Context(), err: atCall(3, func() {
			removeLock(t, s)
			unlock = hold(t, dirOf(s)) // an ADD
		})}, s, rs)
		time.Sleep(time.Second)
		wantLeft(t, s, "while the directory's lock is held", "10.0.0.2", "10.0.0.3")
		unlock()
		r.want(t, "when it is free", Released, Released, Released)
	})
}

// TestHazard47LockIsReplacedUnderAPass: the lock is removed again and again. Release gives up if
// that happens before every removal, and goes on while it makes progress.
func TestHazard47LockIsReplacedUnderAPass(t *testing.T) {
	for _, row := range []struct {
		reason   string
		when     func(call int) bool
		outcomes []Outcome
		err      error
	}{
		{"before every removal", func(int) bool { return true }, []Outcome{NotTried, NotTried}, ErrLocked},
		{"before every removal but the first", func(call int) bool { return call > 2 }, []Outcome{Released, NotTried}, ErrLocked},
		{"and not the next time", func(call int) bool { return call%3 == 1 }, []Outcome{Released, Released}, nil},
	} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		calls := 0
		synctest.Test(t, func(t *testing.T) {
			result, err := s.Release(hookContext{Context: t.Context(), err: func() error {
				if calls++; row.when(calls) {
					removeLock(t, s)
				}
				return nil
			}}, pointers(rs)...)
			diff(t, row.reason, row.outcomes, result.Outcomes)
			if !errors.Is(err, row.err) || err != nil && !strings.Contains(err.Error(), "removed or replaced") {
				t.Errorf("Release: %v, want %v: %s", err, row.err, row.reason)
			}
		})
	}
}

// TestReleaseDirectoryRemoved: the directory is removed while Release runs, before or after
// it takes the lock. Release does not create it again, and its reservations are Gone.
func TestReleaseDirectoryRemoved(t *testing.T) {
	for _, waits := range []bool{true, false} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		synctest.Test(t, func(t *testing.T) {
			ctx, want := hookContext{Context: t.Context()}, Gone
			if waits {
				defer hold(t, dirOf(s))()
				time.AfterFunc(time.Second, func() { removeAll(t, s) })
			} else {
				want = Released
				ctx.err = atCall(3, func() { removeAll(t, s) })
			}
			release(ctx, s, rs).want(t, "Release", want, Gone)
		})
		if _, err := os.Lstat(dirOf(s)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory was created again: %v", err)
		}
	}
}

// A process that is started meanwhile does not inherit the lock, which it would hold for as long
// as it lives. A lock that is made has the plugin's mode.
func TestLockIsNotInherited(t *testing.T) {
	s := newStore(t)
	defer syscall.Umask(syscall.Umask(0))
	lock, err := openedDir(t, s).lock()
	must(t, err)
	defer func() { _ = lock.unlock() }()
	if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(lock.fd), syscall.F_GETFD, 0); errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Errorf("the flags of its descriptor are %#x, %v", flags, errno)
	}
	if info, err := os.Stat(lockOf(s)); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("its file: %v, %v", info, err)
	}
}
