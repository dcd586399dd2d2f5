// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

// refusing calls do on a thread of its own, on which the kernel refuses one system call with
// EIO. The thread ends with the call.
func refusing(t *testing.T, number uint32, do func()) {
	t.Helper()
	const noNewPrivs, setSeccomp, filterMode = 38, 22, 2                                         // prctl(2)
	const loadWord, jumpIfEqual, giveBack, refuse, allow = 0x20, 0x15, 0x06, 0x50000, 0x7fff0000 // seccomp(2)
	filter := []syscall.SockFilter{{Code: loadWord}, {Code: jumpIfEqual, Jf: 1, K: number},
		{Code: giveBack, K: refuse | uint32(syscall.EIO)}, {Code: giveBack, K: allow}}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, noNewPrivs, 1, 0, 0, 0, 0)
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_PRCTL, setSeccomp, filterMode, uintptr(unsafe.Pointer(&program)))
		}
		if errno != 0 {
			done <- errno
			return
		}
		do()
	}()
	must(t, <-done)
}

// TestHazard68UnreadableInARenamedDirectory: an unreadable file is listed even if another
// directory has the name by then. Nothing shows that the file is gone, and its container may
// have siblings.
func TestHazard68UnreadableInARenamedDirectory(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	refusing(t, syscall.SYS_FSTAT, func() {
		l, err := s.List(atCall(t, 1, func() {
			must(t, os.Rename(dirOf(s), dirOf(s)+".old"))
			addNetwork(t, s, network)
		}))
		must(t, err)
		diff(t, "List", []string{"podnet 10.0.0.1 unreadable"}, files(l.Reservations))
	})
}

// TestRefused: a system call fails. A reservation whose file can't be read does not hide the
// others. It is neither left out nor taken for one without an owner, which could be released.
// Nothing is released.
func TestRefused(t *testing.T) {
	for _, row := range []struct {
		call     string
		number   uint32
		listed   OwnerState
		released Outcome
	}{
		{"fstat", syscall.SYS_FSTAT, Unreadable, NotTried}, // of the lock
		{"read", syscall.SYS_READ, Unreadable, Failed},
		{"unlinkat", syscall.SYS_UNLINKAT, Owned, Failed},
		{"flock", syscall.SYS_FLOCK, Owned, NotTried},
	} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		rs := list(t, s)
		refusing(t, row.number, func() {
			for i, r := range list(t, s) {
				if r.Owner != row.listed || !r.ReservedAt.Equal(rs[i].ReservedAt) {
					t.Errorf("%s: %+v", row.call, r)
				}
				if r.Owner == Unreadable {
					wantError(t, row.call, r.Err, syscall.EIO, s.filePath(&r))
					wantError(t, row.call, release(t.Context(), t, "Release of what could not be read", s, []Reservation{r}, Failed), errNotListed)
				}
			}
			result, err := s.Release(t.Context(), pointers(rs)...)
			diff(t, row.call, []Outcome{row.released, row.released}, result.Outcomes)
			if !errors.Is(err, syscall.EIO) || errors.Is(result.Errs[0], syscall.EIO) != (row.released == Failed) ||
				errors.Is(err, ErrLocked) != (row.released == NotTried) {
				t.Errorf("Release: %v, %v: %s", result.Errs, err, row.call)
			}
		})
		wantLeft(t, s, row.call, "10.0.0.1", "10.0.0.2")
	}
	for call, number := range map[string]uint32{"openat": syscall.SYS_OPENAT, "getdents64": syscall.SYS_GETDENTS64} {
		s := newStore(t, "10.0.0.1")
		refusing(t, number, func() {
			rs, err := s.listNetwork(t.Context(), network, nil)
			wantError(t, call, err, syscall.EIO, "network "+network)
			diff(t, call, []Reservation(nil), rs)
		})
	}
}
