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

// onThread calls do on a thread of its own, which is changed before and ends with the call.
func onThread(t *testing.T, change func() error, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := change(); err != nil {
			done <- err
			return
		}
		do()
	}()
	must(t, <-done)
}

// refusing calls do while the kernel refuses some system calls with EIO.
func refusing(t *testing.T, do func(), numbers ...uint32) {
	t.Helper()
	const loadWord, jumpIfEqual, giveBack, refuse, allow = 0x20, 0x15, 0x06, 0x50000 | uint32(unix.EIO), 0x7fff0000 // seccomp(2)
	filter := []unix.SockFilter{{Code: loadWord}}
	for _, number := range numbers {
		filter = append(filter, unix.SockFilter{Code: jumpIfEqual, Jf: 1, K: number}, unix.SockFilter{Code: giveBack, K: refuse})
	}
	filter = append(filter, unix.SockFilter{Code: giveBack, K: allow})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	onThread(t, func() error {
		return errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
			unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
	}, do)
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
}
