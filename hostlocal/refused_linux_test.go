// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refusing calls do on a thread of its own, on which the kernel refuses some system calls with
// EIO. The thread ends with the call.
func refusing(t *testing.T, do func(), numbers ...uint32) {
	t.Helper()
	const noNewPrivs, setSeccomp, filterMode = 38, 22, 2                                         // prctl(2)
	const loadWord, jumpIfEqual, giveBack, refuse, allow = 0x20, 0x15, 0x06, 0x50000, 0x7fff0000 // seccomp(2)
	filter := []syscall.SockFilter{{Code: loadWord}}
	for _, number := range numbers {
		filter = append(filter, syscall.SockFilter{Code: jumpIfEqual, Jf: 1, K: number}, syscall.SockFilter{Code: giveBack, K: refuse | uint32(syscall.EIO)})
	}
	filter = append(filter, syscall.SockFilter{Code: giveBack, K: allow})
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

// TestHazard68UnreadableWithoutAStatus: an unreadable file is listed even if its status is refused,
// too. Nothing shows that the file is gone, and its container may have siblings.
func TestHazard68UnreadableWithoutAStatus(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	refusing(t, func() { diff(t, "List", []string{"podnet 10.0.0.1 unreadable"}, files(list(t, s))) }, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT)
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
		refusing(t, func() {
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
		}, row.number)
		wantLeft(t, s, row.call, "10.0.0.1", "10.0.0.2")
	}
	for call, number := range map[string]uint32{"openat": syscall.SYS_OPENAT, "getdents64": syscall.SYS_GETDENTS64} {
		s := newStore(t, "10.0.0.1")
		refusing(t, func() {
			rs, err := s.listNetwork(t.Context(), network, nil, &memory{})
			wantError(t, call, err, syscall.EIO, "network "+network)
			diff(t, call, []Reservation(nil), rs)
		}, number)
	}
}
