// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	must(t, err)
	defer func() { _ = f.Close() }() // unlocks, too
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("flock: %v", err)
	}
	return err == nil
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
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			result, err := s.Release(hookContext{Context: ctx, err: ctx.Err, done: func() {
				if time.Since(start) > time.Second-maxPause {
					<-ctx.Done()
					unlock()
					unlock = func() {}
				}
			}}, pointers(rs)...)
			if got := time.Since(start); got != time.Second {
				t.Errorf("Release returned after %v", got)
			}
			diff(t, "Release", ReleaseResult{Outcomes: []Outcome{NotTried, NotTried, NotTried}, Errs: make([]error, 3)}, result)
			why := fmt.Sprintf(" not tried: %v: %v", ErrLocked, errLockBusy)
			wantError(t, "Release", err, ErrLocked, dirOf(s)+", with 2"+why, other+", with 1"+why)
			wantError(t, "Release", err, context.DeadlineExceeded)
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
			time.AfterFunc(add, func() {
				diff(t, "while it waits", []string{"a 10.0.0.1", "podnet 10.0.0.1"}, files(list(t, s)))
				unlock()
			})
			start := time.Now()
			err := release(t.Context(), t, "Release", s, rs, Released, NotTried, Released)
			wantError(t, "Release", err, ErrLocked)
			if waited := time.Since(start).Round(time.Second); waited != add+10*time.Second || strings.Contains(err.Error(), busy) {
				t.Errorf("it gave up after %v: %v", waited, err)
			}
		})
	})
}

// TestHazard118ReleaseAfterItsContext: the context ends at some call, perhaps because the file system
// answers late. A file that was read and compared by then is not removed, and the reservations after
// it are NotTried, in all networks.
func TestHazard118ReleaseAfterItsContext(t *testing.T) {
	for _, end := range []int{1, 2, 3, 4, 7} {
		s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		addNetwork(t, s, "z", "10.0.0.1")
		rs := list(t, s)
		calls, released := 0, (end-1)/2
		want := []Outcome{Released, Released, Released, NotTried, NotTried, NotTried, NotTried, NotTried}[3-released:][:5]
		ctx := hook(t, func(call int) error {
			if calls = call; call >= end {
				return fmt.Errorf("%w: %w", context.Canceled, fs.ErrNotExist) // not the error of a file that was removed
			}
			return nil
		})
		synctest.Test(t, func(t *testing.T) { // no hold is too long
			err := release(ctx, t, fmt.Sprint("ended at call ", end), s, rs, want...)
			wantError(t, "Release", err, context.Canceled, fmt.Sprintf("with %d not tried", 4-released), "with 1 not tried")
		})
		diff(t, "left", files(rs)[released:], files(list(t, s)))
		if calls != end+1 { // one more for the other network
			t.Errorf("ended at call %d: the context was called %d times", end, calls)
		}
	}
}

// TestReleaseCanNotUnlock: if the lock can't be released, Release returns that error, and
// the outcomes, and does not try the network again.
func TestReleaseCanNotUnlock(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		err := release(atCall(t, 1, func() {
			must(t, syscall.Close(descriptors(t)[lockOf(s)]))
			time.Sleep(maxHold)
		}), t, "Release", s, rs, Released, NotTried)
		wantError(t, "Release", err, syscall.EBADF, "flock: bad file descriptor\nclose lock: bad file descriptor")
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
		ctx := hook(t, func(call int) error {
			if other, err := d.lock(); isFree(t, s) || !errors.Is(err, errLockBusy) {
				t.Errorf("the lock can be taken during a hold: %v, %v", other, err)
			}
			at = append(at, time.Since(start))
			time.Sleep(sleeps[call-1])
			return nil
		})
		ctx.done = func() {
			if len(at) > 0 && !isFree(t, s) {
				t.Error("the lock is held during a pause")
			}
		}
		result, err := s.Release(ctx, pointers(rs)...)
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
	defer func() {
		if p := recover(); p != "out of ink" || !isFree(t, s) {
			t.Errorf("the caller's panic is %v, or the lock is still held", p)
		}
	}()
	_, _ = s.Release(atCall(t, 1, func() { panic("out of ink") }), pointers(rs)...)
}

// TestReleaseWithoutLock: if the lock can't be taken, nothing is released and the error says
// why. Other networks, and later calls, are not affected.
func TestReleaseWithoutLock(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "lock")
	write(t, outside, "")
	for _, row := range []struct {
		reason string
		spoil  func(lock string)
		want   string
	}{
		{"a directory", func(lock string) { mkdir(t, lock) }, "a directory"},
		{"a pipe: opening it would wait for a writer", func(lock string) { node(t, lock, syscall.S_IFIFO) }, "not a regular file"},
		{"a link to a file outside, which would be locked (R7)", func(lock string) { must(t, os.Symlink(outside, lock)) }, "not a regular file"},
		{"a link to nothing, which would be created", func(lock string) { must(t, os.Symlink("missing", lock)) }, "not a regular file"},
	} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		addNetwork(t, s, "z", "10.0.0.1")
		rs := list(t, s)
		row.spoil(lockOf(s))
		before := tree(t, dirOf(s))
		err := release(t.Context(), t, row.reason, s, rs, NotTried, NotTried, Released)
		wantError(t, row.reason, err, ErrLocked, row.want, dirOf(s))
		diff(t, row.reason, before, tree(t, dirOf(s)))
		must(t, os.RemoveAll(lockOf(s)))
		must(t, release(t.Context(), t, "the next release", s, rs, Released, Released, Gone))
	}
}

// TestHazard47LockReplacedBeforeLocking: the lock is replaced after it is opened and before it
// is locked.
func TestHazard47LockReplacedBeforeLocking(t *testing.T) {
	s := newStore(t)
	d := openedDir(t, s)
	remove := func() { must(t, os.Remove(lockOf(s))) }
	for _, row := range []struct {
		reason string
		do     func(l *fileLock)
		want   error
	}{
		{"nothing happens", func(*fileLock) {}, nil},
		{"removed", func(*fileLock) { remove() }, errLockReplaced},
		{"another file was moved over it", func(*fileLock) {
			write(t, lockOf(s)+"-new", "")
			must(t, os.Rename(lockOf(s)+"-new", lockOf(s)))
		}, errLockReplaced},
		{"a link to the same file", func(*fileLock) {
			must(t, os.Rename(lockOf(s), filepath.Join(s.DataDir(), "old")), os.Symlink("../old", lockOf(s)))
		}, errLockReplaced},
		{"the same inode number on another file system", func(l *fileLock) { l.file.dev++ }, errLockReplaced},
		{"the directory is not open", func(l *fileLock) { l.dir = dir{} }, syscall.EBADF},
	} {
		for _, locked := range []bool{false, true} {
			l, err := d.lock()
			must(t, err)
			if !locked {
				must(t, syscall.Flock(l.fd, syscall.LOCK_UN))
			}
			row.do(l)
			if check, try := l.check(), l.try(); !errors.Is(check, row.want) || !errors.Is(try, row.want) {
				t.Errorf("check: %v, try: %v, want %v: %s", check, try, row.want, row.reason)
			}
			must(t, l.unlock(), os.RemoveAll(lockOf(s)))
		}
	}
}

// TestHazard47LockIsReplacedUnderAPass: the lock is removed, perhaps again and again. Release gives
// up if that happens before every removal, and goes on while it makes progress. If an ADD has locked
// a new one, Release takes that before it goes on.
func TestHazard47LockIsReplacedUnderAPass(t *testing.T) {
	for _, row := range []struct {
		reason   string
		when     func(call int) bool
		add      time.Duration // holds the new lock
		outcomes []Outcome
		err      error
	}{
		{"before every removal", func(int) bool { return true }, 0, []Outcome{NotTried, NotTried}, ErrLocked},
		{"before every removal but the first", func(call int) bool { return call > 2 }, 0, []Outcome{Released, NotTried}, ErrLocked},
		{"and not the next time", func(call int) bool { return call%3 == 1 }, 0, []Outcome{Released, Released}, nil},
		{"while it is held", func(call int) bool { return call == 3 }, time.Second, []Outcome{Released, Released}, nil},
	} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		synctest.Test(t, func(t *testing.T) {
			err := release(hook(t, func(call int) error {
				if !row.when(call) {
					return nil
				}
				must(t, os.Remove(lockOf(s)))
				if row.add > 0 {
					unlock := hold(t, dirOf(s))
					time.AfterFunc(row.add, func() {
						wantLeft(t, s, "while an ADD holds the lock", "10.0.0.2")
						unlock()
					})
				}
				return nil
			}), t, row.reason, s, rs, row.outcomes...)
			if row.err == nil {
				must(t, err)
			} else {
				wantError(t, row.reason, err, row.err, "removed or replaced")
			}
		})
	}
}

// TestReleaseDirectoryRemoved: the directory is removed while Release runs, before or after
// it takes the lock. Release does not create it again, and its reservations are Gone.
func TestReleaseDirectoryRemoved(t *testing.T) {
	for _, first := range []Outcome{Gone, Released} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		remove := func() { must(t, os.RemoveAll(dirOf(s))) }
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if first == Released {
				ctx = atCall(t, 3, remove)
			} else {
				defer hold(t, dirOf(s))()
				time.AfterFunc(time.Second, remove)
			}
			must(t, release(ctx, t, "Release", s, rs, first, Gone))
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
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(lock.fd), syscall.F_GETFD, 0)
	if errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Errorf("the flags of its descriptor are %#x, %v", flags, errno)
	}
	if info, err := os.Stat(lockOf(s)); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("its file: %v, %v", info, err)
	}
}
