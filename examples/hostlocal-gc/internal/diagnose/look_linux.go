// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// IsReadOnly reports whether a directory is on a file system that is mounted read-only.
func IsReadOnly(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Flags&unix.ST_RDONLY != 0
}

// isFull reports whether a file system has no block or no inode left. Some count no inodes.
func isFull(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Flags&unix.ST_RDONLY == 0 && s.Blocks > 0 && (s.Bfree == 0 || s.Files > 0 && s.Ffree == 0)
}

// isNamespace reports whether a path leads to the namespace with an inode number.
func isNamespace(path, inode string) bool {
	var s unix.Stat_t
	return unix.Stat(path, &s) == nil && strconv.FormatUint(s.Ino, 10) == inode
}
