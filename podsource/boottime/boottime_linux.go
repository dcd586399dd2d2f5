// SPDX-License-Identifier: Apache-2.0

// Package boottime returns how long a node has been up.
package boottime

import (
	"syscall"
	"time"
	"unsafe"
)

// Since returns how long the node has been up, including sleep, or zero if the kernel
// does not report it (clock_gettime(2), CLOCK_BOOTTIME).
func Since() time.Duration {
	const clockBoottime = 7
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
