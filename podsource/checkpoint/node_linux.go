// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

const (
	oPath = 0x200000   // O_PATH, fcntl.h: the standard library does not name it
	nsfs  = 0x6e736673 // NSFS_MAGIC, linux/magic.h
)

// look returns the identity of the namespace that is mounted at path itself.
// There is none to be taken of anything else. A mount that is not passed on to
// this mount namespace is an empty file here. A link is not followed: those in
// /proc end with a process, and not with its namespace.
func look(path string) (NetNS, error) {
	fd, err := syscall.Open(path, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return NetNS{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = syscall.Close(fd) }() // nothing was written through it
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &fs); err != nil {
		return NetNS{}, os.NewSyscallError("fstatfs", err)
	}
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return NetNS{}, os.NewSyscallError("fstat", err)
	}
	if int64(fs.Type) != nsfs {
		return NetNS{}, errors.New("no namespace is mounted there")
	}
	return NetNS{Path: path, Dev: uint64(stat.Dev), Inode: stat.Ino}, nil
}

// gone reports whether the namespace is surely no more at its path: nothing is
// there in a directory that is, or another namespace. Where the directory is missing,
// too, this process may not see what the one saw that recorded it.
func (n NetNS) gone() bool {
	if n.Inode == 0 {
		return false
	}
	now, err := look(n.Path)
	if errors.Is(err, syscall.ENOENT) {
		dir, err := os.Stat(filepath.Dir(n.Path))
		return err == nil && dir.IsDir()
	}
	return err == nil && now != n
}
