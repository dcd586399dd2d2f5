// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// LockHolder returns who holds the plugin's lock in a network's directory, as "process 4711 (cp)", or
// nothing. It reads /proc/locks (proc_locks(5)) and takes no lock. That table names the device of the
// file system, which on btrfs and overlayfs is not that of stat(2): there it finds nothing.
func LockHolder(dir string) string {
	var lock unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "lock"), &lock); err != nil { // filemutex puts it there
		return ""
	}
	table, _ := os.ReadFile("/proc/locks") // without it nobody is known
	// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF; a waiting one has an arrow
	held := fmt.Sprintf(`(?m)^\d+: FLOCK +\S+ +\S+ +(-?\d+) %02x:%02x:%d `, unix.Major(lock.Dev), unix.Minor(lock.Dev), lock.Ino)
	found := regexp.MustCompile(held).FindSubmatch(table)
	if found == nil {
		return ""
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%s/comm", found[1]))
	if err != nil {
		return "a process that can't be seen from here"
	}
	return fmt.Sprintf("process %s (%s)", found[1], bytes.TrimSpace(comm))
}
