// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// originOf returns the first line of a memory that is written now, and how its names of a data directory begin.
func originOf(dataDir string) (of, dir string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", err
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dataDir, &st); err != nil {
		return "", "", &fs.PathError{Op: "stat", Path: dataDir, Err: err}
	}
	namespace, _ := os.Readlink("/proc/self/ns/time") // since Linux 5.6; before, there is one
	return memoryVersion + strings.TrimSpace(string(boot)) + " " + namespace, fmt.Sprintf("%d:%d ", st.Dev, st.Ino), nil
}

// maxMemory is several times the size of a memory of 65,536 reservations.
const maxMemory = 64 << 20

// readPrivate returns the content of a memory that no other user can have written.
func readPrivate(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read from
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	if st.Mode&(syscall.S_IFMT|0o022) != syscall.S_IFREG || int(st.Uid) != os.Geteuid() || st.Size > maxMemory {
		return "", errors.New("it is not used, since others can write it, or it is no regular file, or larger than 64 MiB; remove it")
	}
	content, err := io.ReadAll(f)
	return string(content), err
}

// lockTries is how often the lock of a memory is tried, ten milliseconds apart: another process
// that was stopped while it held the lock must not stop this one.
const lockTries = 100

// lockMemory locks the directory of a memory. No other process changes the memory meanwhile.
func lockMemory(path string) (unlock func(), err error) {
	path = filepath.Dir(path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	for try := 0; err == nil; try++ {
		if err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { _ = dir.Close() }, nil // this unlocks it
		}
		if <-time.After(10 * time.Millisecond); try < lockTries {
			err = nil
		}
	}
	_ = dir.Close() // nothing was locked, or it is nil
	return nil, fmt.Errorf("locking %s, in which the memory is: %w", path, err)
}
