// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The holder of a lock is found by the device in the table of locks. Where that differs from
// stat(2)'s, as on btrfs and overlayfs, it is found by its open files.
func TestLockHolder(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	info, err := lock.Stat()
	if err != nil {
		t.Fatal(err)
	}
	inode := info.Sys().(*syscall.Stat_t).Ino //nolint:forcetypeassert // its type on Linux
	stranger := os.Getppid()                  // go test, without such an open file
	for _, row := range []struct {
		reason, kind string
		pid          int
		inode        uint64
		want         int
	}{
		{"another device's name, and this process has the file open", "FLOCK", os.Getpid(), inode, os.Getpid()},
		{"another device, whose inode has the number by chance", "FLOCK", stranger, inode, 0},
		{"another device, and a process that can't be seen", "FLOCK", 0, inode, 0},
		{"another inode", "FLOCK", os.Getpid(), inode + 1, 0},
		{"an inode that ends in this one's number", "FLOCK", os.Getpid(), inode + 1e18, 0},
		{"another kind of lock", "POSIX", os.Getpid(), inode, 0},
		{"one that waits", "-> FLOCK", os.Getpid(), inode, 0},
	} {
		table := filepath.Join(dir, "locks")
		line := fmt.Sprintf("1: %s  ADVISORY  WRITE %d fe:fe:%d 0 EOF\n", row.kind, row.pid, row.inode)
		if err := os.WriteFile(table, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := lockHolderIn(dir, table); err != nil || got != row.want {
			t.Errorf("%s: got %d, %v, want %d", row.reason, got, err, row.want)
		}
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got, err := lockHolder(dir); err != nil || got != os.Getpid() {
		t.Errorf("the kernel's table gives %d, %v", got, err)
	}
}
