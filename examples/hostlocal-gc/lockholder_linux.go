// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockHolder returns the process that holds the plugin's lock in a network's directory, 0 if none
// does, or -1 if the process is not visible from here. It reads /proc/locks (proc_locks(5)) and
// takes no lock.
func lockHolder(dir string) (pid int, err error) { return lockHolderIn(dir, "/proc/locks") }

// lockHolderIn is lockHolder with another table of locks, for tests.
func lockHolderIn(dir, table string) (pid int, err error) {
	info, err := os.Stat(filepath.Join(dir, "lock")) // filemutex puts it there
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, nil
	}
	device, inode := fmt.Sprintf("%02x:%02x", unix.Major(stat.Dev), unix.Minor(stat.Dev)), fmt.Sprintf(":%d", stat.Ino)
	f, err := os.Open(table)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF; a waiting one has an arrow
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || !strings.HasSuffix(fields[5], inode) {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		seen := err == nil && pid > 0
		switch {
		case fields[5] != device+inode && !(seen && hasOpen(pid, info)):
			continue
		case !seen:
			return -1, nil
		}
		return pid, nil
	}
	return 0, nil
}

// hasOpen reports whether a process has a network's lock file open. /proc/locks names the device of
// the file system, but stat(2) that of a subvolume on btrfs and of a layer on overlayfs. Only the
// open file proves there that two equal inode numbers are the same file. Files of other names are
// skipped: they may be on a mount that hangs.
func hasOpen(pid int, lock fs.FileInfo) bool {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // an error is about the pattern
	return slices.ContainsFunc(paths, func(path string) bool {
		if target, err := os.Readlink(path); err != nil || filepath.Base(target) != lock.Name() {
			return false
		}
		info, err := os.Stat(path)
		return err == nil && os.SameFile(info, lock)
	})
}

// describeProcess says what a process runs.
func describeProcess(pid int) string {
	if pid <= 0 {
		return "a process that can't be seen from here"
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm)))
}
