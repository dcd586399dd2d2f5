// SPDX-License-Identifier: Apache-2.0

// Package boottime reads the clocks of a node's boot.
package boottime

import (
	"syscall"
	"time"
	"unsafe"
)

// Since returns how long the node has been up, including sleep, or zero if the kernel
// does not report it (clock_gettime(2), CLOCK_BOOTTIME).
func Since() time.Duration { return read(7) }

// Monotonic returns the clock that no sleep advances, and that all processes of a boot and a time
// namespace share (CLOCK_MONOTONIC), or zero if the kernel does not report it.
func Monotonic() time.Duration { return read(1) }

func read(clock uintptr) time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
