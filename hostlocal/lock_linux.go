// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// fileLock is the plugin's lock on a network's directory: flock(2) of the file
// that is named lock in there (plugins, backend/disk NewFileLock, and
// alexflint/go-filemutex).
type fileLock struct {
	dir *dir
	fd  int
	st  syscall.Stat_t // of fd
}

// lock takes the plugin's lock, or returns errLockBusy if somebody else has it. It
// never blocks, so that giving up never leaves the lock taken later (R8). The file
// is opened anew each time: the one that was waited for may have been removed
// meanwhile (hazard 47). An error that is fs.ErrNotExist means that the directory
// was removed.
func (d *dir) lock() (*fileLock, error) {
	l, err := d.openLock()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	if err = l.try(); err == nil {
		return l, nil
	}
	_ = syscall.Close(l.fd) // unlocks, too
	if !errors.Is(err, errLockBusy) {
		err = fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return nil, err
}

// openLock opens the lock, and makes it if there is none, as the plugin does.
func (d *dir) openLock() (*fileLock, error) {
	const flags = syscall.O_RDWR | syscall.O_CREAT | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC | syscall.O_NOCTTY
	l := &fileLock{dir: d}
	fd, err := retry(func() (int, error) { return syscall.Openat(d.fd, "lock", flags, 0o750) })
	if err != nil {
		if d.fstatat([]byte("lock\x00"), &l.st) == nil && !isRegular(&l.st) {
			return nil, lockTypeError(&l.st)
		}
		return nil, os.NewSyscallError("openat lock", err)
	}
	l.fd = fd
	err = os.NewSyscallError("fstat lock", syscall.Fstat(fd, &l.st))
	if err == nil && !isRegular(&l.st) {
		err = lockTypeError(&l.st)
	}
	if err != nil {
		_ = syscall.Close(fd) // nothing was written through it
		return nil, err
	}
	return l, nil
}

// try locks the file, and returns errLockBusy if that is not possible now, or if
// the file is not the directory's lock any more.
func (l *fileLock) try() error {
	_, err := retry(func() (int, error) { return 0, syscall.Flock(l.fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLockBusy
	}
	if err != nil {
		return os.NewSyscallError("flock", err)
	}
	if err = l.check(); errors.Is(err, errLockReplaced) {
		return errLockBusy
	}
	return err
}

// check returns errLockReplaced if the file that is locked is not the
// directory's lock any more, so that the plugin would lock another one.
func (l *fileLock) check() error {
	var st syscall.Stat_t
	err := l.dir.fstatat([]byte("lock\x00"), &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (st.Ino != l.st.Ino || st.Dev != l.st.Dev || st.Nlink == 0) {
		return errLockReplaced
	}
	return err
}

// unlock gives the lock back. Closing alone would not do where a process that is
// being started shares the descriptor for a moment.
func (l *fileLock) unlock() error {
	return errors.Join(
		os.NewSyscallError("flock", syscall.Flock(l.fd, syscall.LOCK_UN)),
		os.NewSyscallError("close lock", syscall.Close(l.fd)))
}

// lockTypeError says what is named lock and is not a regular file.
func lockTypeError(st *syscall.Stat_t) error {
	kind := st.Mode & syscall.S_IFMT
	if kind == syscall.S_IFLNK {
		return fmt.Errorf("the lock is %w but a symbolic link, which is not followed", errNotRegular)
	}
	what := map[uint32]string{syscall.S_IFDIR: "directory", syscall.S_IFIFO: "pipe", syscall.S_IFSOCK: "socket"}[kind]
	return fmt.Errorf("the lock is %w but a %s; host-local can't lock it either", errNotRegular, cmp.Or(what, "device"))
}
