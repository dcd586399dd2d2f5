// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// kernelBootID reads what the kernel made up when it booted, random(4).
func kernelBootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(content))
	if id == "" {
		return "", errors.New("it is empty")
	}
	return id, nil
}

// sinceBoot returns for how long the node has been up, sleep included, or zero
// where the kernel does not tell (clock_gettime(2), CLOCK_BOOTTIME).
func sinceBoot() time.Duration {
	const clockBoottime = 7
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
