// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

// Call calls do on a thread of its own, on which the kernel refuses the system call with this
// number with EIO. It needs no root, but a kernel that allows seccomp filters by prctl(2). The
// thread ends with the call.
func Call(t testing.TB, number uint32, do func()) {
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
		t.Fatalf("setting a seccomp filter: %v", err)
	}
}
