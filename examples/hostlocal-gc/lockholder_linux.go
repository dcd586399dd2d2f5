// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockHolder returns the process that holds the plugin's lock in a network's
// directory, or 0. It reads /proc/locks and takes no lock (proc_locks(5)). A process
// that is not visible from here is -1.
func lockHolder(dir string) (pid int, err error) {
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
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF; one that waits has an arrow
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err = strconv.Atoi(fields[4]); err != nil || pid <= 0 {
			return -1, nil
		}
		return pid, nil
	}
	return 0, nil
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
