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
)

// A context that is done and returns no error ends Release like any other.
func TestReleaseContextIsDoneWithoutAnError(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		slow := hookContext{Context: ctx, err: func() error {
			time.Sleep(maxHold)
			return nil
		}}
		result, err := s.Release(slow, pointers(rs)...)
		diff(t, "Release", []Outcome{Released, NotTried}, result.Outcomes)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrLocked) {
			t.Errorf("Release: %v, want the end of the context alone", err)
		}
	})
}

// The error of a context is fs.ErrNotExist, like that of a file or a directory that was removed.
func TestReleaseContextErrorIsNotExist(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	for _, first := range []error{nil, fs.ErrNotExist} {
		gone := hookContext{Context: t.Context(), err: func() error {
			err := first
			first = fs.ErrNotExist
			return err
		}}
		result, err := s.Release(gone, pointers(list(t, s))...)
		if result.Outcomes[0] != NotTried || err == nil {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	}
}

// After its context has ended Release takes no lock, and the error says of each network what
// it waited for.
func TestReleaseTakesNoLockAfterItsEnd(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	rs := list(t, s)
	rs = append(rs, rs[0])
	rs[1].Network = "znet"
	defer hold(t, dirOf(s))()
	unlock := hold(t, addNetwork(t, s, "znet", "10.0.0.1"))
	inner, cancel := context.WithCancel(t.Context())
	ends := hookContext{Context: inner, done: func() {
		unlock()
		cancel()
	}}
	result, err := s.Release(ends, pointers(rs)...)
	if n := strings.Count(fmt.Sprint(err), errLockBusy.Error()); n != 2 || slices.Contains(result.Outcomes, Released) {
		t.Errorf("%v, error %v, want one for each network", result.Outcomes, err)
	}
}

// No reservation's address has a zone, which could lead out of the directory.
func TestReleaseZone(t *testing.T) {
	s := newStore(t, "fd00::1")
	mkdir(t, filepath.Join(dirOf(s), "fd00::1%"))
	outside := filepath.Join(s.DataDir(), "outside")
	must(t, os.Link(at(s, "fd00::1"), outside))
	r := list(t, s)[0]
	r.IP = r.IP.WithZone("/../../outside")
	if result, err := s.Release(t.Context(), &r); result.Outcomes[0] != Failed || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error("a file outside of the directory was removed")
	}
}

// chmod sets the modes of files in the network's directory, and makes it visible to all.
func chmod(t *testing.T, s *Store, modes map[string]fs.FileMode) {
	t.Helper()
	modes[".."], modes["../.."] = 0o755, 0o755
	for name, mode := range modes {
		must(t, os.Chmod(filepath.Join(dirOf(s), name), mode))
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
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		write(t, lockOf(s), "")
		chmod(t, s, map[string]fs.FileMode{"10.0.0.1": 0o644, "10.0.0.2": 0o644, "lock": 0o666, ".": 0o555})
		rs := list(t, s)
		row.with(t, func() {
			result, err := s.Release(t.Context(), pointers(rs)...)
			diff(t, row.reason, []Outcome{Failed, Failed}, result.Outcomes)
			if !errors.Is(err, row.want) || !errors.Is(result.Errs[1], row.want) {
				t.Errorf("%s: %v", row.reason, err)
			}
		})
		wantLeft(t, s, row.reason, "10.0.0.1", "10.0.0.2")
		must(t, os.Chmod(dirOf(s), 0o755))
	}
}

// TestListUnreadableDirectory: List returns an error and nothing else (R3).
func TestListUnreadableDirectory(t *testing.T) {
	s := newStore(t)
	addNetwork(t, s, "z")
	chmod(t, s, map[string]fs.FileMode{".": 0})
	unprivileged(t, func() {
		if l, err := s.List(t.Context()); l.Networks != nil || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), network) {
			t.Errorf("List: %v, %v, want an error that names the network", l, err)
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
