// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// diskOf reports whether a directory's file system is mounted read-only, and whether it has no block or no inode left. Some
// count no inodes.
func diskOf(dir string) (readOnly, full bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return false, false
	}
	readOnly = s.Flags&unix.ST_RDONLY != 0
	return readOnly, !readOnly && s.Blocks > 0 && (s.Bfree == 0 || s.Files > 0 && s.Ffree == 0)
}

// isNamespace reports whether a path leads to the namespace with an inode number.
func isNamespace(path, inode string) bool {
	var s unix.Stat_t
	return unix.Stat(path, &s) == nil && strconv.FormatUint(s.Ino, 10) == inode
}
