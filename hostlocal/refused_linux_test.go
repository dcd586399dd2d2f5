// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
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
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A reservation whose file can't be read is neither left out nor taken for one without an
// owner, which could be released.
func TestReadIsRefused(t *testing.T) {
	s := newStore(t, "10.0.0.2")
	for _, row := range []struct {
		reason string
		number uint32
	}{
		{"its status", syscall.SYS_FSTAT},
		{"its content", syscall.SYS_READ},
	} {
		var rs []Reservation
		var err error
		refusing(t, row.number, func() { rs, err = reservations(s.List(t.Context())) })
		if err != nil || len(rs) != 1 || rs[0].Owner != Unreadable || !errors.Is(rs[0].Err, syscall.EIO) {
			t.Errorf("%s: got %+v, %v, want it unreadable", row.reason, rs, err)
		}
	}
}
