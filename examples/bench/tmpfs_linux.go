// SPDX-License-Identifier: Apache-2.0

package main

import "syscall"

// isTmpfs reports whether a directory is on a tmpfs (statfs(2), TMPFS_MAGIC).
func isTmpfs(path string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(path, &st) == nil && st.Type == 0x01021994
}
