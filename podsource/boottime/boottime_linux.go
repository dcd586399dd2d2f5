// SPDX-License-Identifier: Apache-2.0

// Package boottime tells how long a node has been up.
package boottime

import (
	"syscall"
	"time"
	"unsafe"
)

// Since returns for how long the node has been up, sleep included, or zero where
// the kernel does not tell (clock_gettime(2), CLOCK_BOOTTIME).
func Since() time.Duration {
	const clockBoottime = 7
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
