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
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A context that is done and returns no error ends Release like any other.
func TestReleaseContextIsDoneWithoutAnError(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		slow := hookContext{Context: ctx, err: func() error {
			time.Sleep(maxHold)
			return nil
		}}
		result, err := s.Release(slow, pointers(rs)...)
		if result.Outcomes[0] != Released || result.Outcomes[3] != NotTried || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	})
}

// The error of a context is fs.ErrNotExist, like that of a directory that was removed.
func TestReleaseContextErrorIsNotExist(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	gone := hookContext{Context: t.Context(), err: func() error { return fmt.Errorf("the node: %w", fs.ErrNotExist) }}
	result, err := s.Release(gone, pointers(list(t, s))...)
	if result.Outcomes[0] != NotTried || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
}

// After its context has ended Release takes no lock, and the error says of each network what
// it waited for.
func TestReleaseTakesNoLockAfterItsEnd(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	other := addNetwork(t, s, "znet")
	write(t, filepath.Join(other, "10.0.0.1"), "abc\r\neth0")
	rs := list(t, s)
	var last *os.File // the lock of the second network
	for _, dir := range []string{dirOf(s), other} {
		f, err := os.Create(filepath.Join(dir, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		last = f
	}
	inner, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends := hookContext{Context: inner, done: func() {
		_ = syscall.Flock(int(last.Fd()), syscall.LOCK_UN)
		cancel()
	}}
	result, err := s.Release(ends, pointers(rs)...)
	if n := strings.Count(fmt.Sprint(err), errLockBusy.Error()); n != 2 || slices.Contains(result.Outcomes, Released) {
		t.Errorf("%v, error %v, want one for each network", result.Outcomes, err)
	}
}

// Release does not give up after one replacement of the lock, however long the hold took.
func TestReleaseLockReplacedInASlowHold(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		slow := hookContext{Context: t.Context(), err: atCall(1, func() {
			time.Sleep(2 * maxLockWait)
			if err := os.Remove(filepath.Join(dirOf(s), "lock")); err != nil {
				t.Error(err)
			}
		})}
		if result, err := s.Release(slow, pointers(rs)...); result.Outcomes[0] != Released || err != nil {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	})
}

// No reservation's address has a zone, which could lead out of the directory.
func TestReleaseZone(t *testing.T) {
	s := newStore(t)
	write(t, at(s, "fd00::1"), "abc\r\neth0")
	mkdir(t, filepath.Join(dirOf(s), "fd00::1%"))
	outside := filepath.Join(s.DataDir(), "outside")
	if err := os.Link(at(s, "fd00::1"), outside); err != nil {
		t.Fatal(err)
	}
	r := list(t, s)[0]
	r.IP = r.IP.WithZone("/../../outside")
	if result, err := s.Release(t.Context(), &r); result.Outcomes[0] != Failed || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error("a file outside of the directory was removed")
	}
}

// TestReleaseFails: a file that can't be read again or removed is kept, with an error.
func TestReleaseFails(t *testing.T) {
	for _, row := range []struct {
		reason string
		with   func(t *testing.T, do func())
		want   error
	}{
		{"no descriptor is left but the directory's and the lock's", func(t *testing.T, do func()) { withDescriptors(t, 2, do) }, syscall.EMFILE},
		{"the directory is not writable", unprivileged, fs.ErrPermission},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2")
		write(t, filepath.Join(dirOf(s), "lock"), "")
		for name, mode := range map[string]fs.FileMode{"10.0.0.1": 0o644, "10.0.0.2": 0o644, "lock": 0o666, ".": 0o555, "..": 0o755, "../..": 0o755} {
			if err := os.Chmod(filepath.Join(dirOf(s), name), mode); err != nil {
				t.Fatal(err)
			}
		}
		rs := list(t, s)
		row.with(t, func() {
			result, err := s.Release(t.Context(), pointers(rs)...)
			if diff := cmp.Diff([]Outcome{Failed, Failed}, result.Outcomes); diff != "" || !errors.Is(err, row.want) || !errors.Is(result.Errs[1], row.want) {
				t.Errorf("%s: %v (-want +got):\n%s", row.reason, err, diff)
			}
		})
		if got := left(t, s); len(got) != 2 {
			t.Errorf("left are %v, want all: %s", got, row.reason)
		}
		if err := os.Chmod(dirOf(s), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestListUnreadableDirectory: List returns an error and nothing else (R3).
func TestListUnreadableDirectory(t *testing.T) {
	s := newStore(t)
	addNetwork(t, s, "z")
	for name, mode := range map[string]fs.FileMode{".": 0, "..": 0o755, "../..": 0o755} {
		if err := os.Chmod(filepath.Join(dirOf(s), name), mode); err != nil {
			t.Fatal(err)
		}
	}
	unprivileged(t, func() {
		if rs, err := reservations(s.List(t.Context())); rs != nil || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), network) {
			t.Errorf("List: %v, %v, want an error that names the network", rs, err)
		}
	})
}

// unprivileged calls do in a thread without root's rights to the file system.
func unprivileged(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() == 0 {
		const nobody = 65534
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		setfsuid(t, nobody)
		defer setfsuid(t, 0)
	}
	do()
}

func setfsuid(t *testing.T, uid uintptr) {
	t.Helper()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, uid, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
}
