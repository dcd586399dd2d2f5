// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// fileLock is the plugin's lock on a network's directory: flock(2) of the file named
// lock in it (plugins, backend/disk NewFileLock, and alexflint/go-filemutex).
type fileLock struct {
	dir  dir
	fd   int
	file Reservation // the identity of its file, and nothing else
}

// lock takes the plugin's lock. Like the plugin, it creates the file if there is none. The
// error is errLockBusy if another process holds the lock, and errLockReplaced if the file
// was replaced before it was locked. lock never blocks, so an attempt that was given up
// can't take the lock later (R8). It opens the file each time, because the one of an
// earlier attempt may have been removed (hazard 47). An error that is fs.ErrNotExist means
// that the directory was removed.
func (d dir) lock() (*fileLock, error) {
	l := &fileLock{dir: d}
	var err error
	if l.fd, err = d.openFile([]byte("lock\x00"), syscall.O_RDWR|syscall.O_CREAT, &l.file); err == nil {
		if err = l.try(); err != nil {
			_ = syscall.Close(l.fd) // unlocks, too
		}
	}
	return l, err
}

// try locks the open file.
func (l *fileLock) try() error {
	_, err := retry(func() (int, error) { return 0, syscall.Flock(l.fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLockBusy
	}
	return cmp.Or(os.NewSyscallError("flock", err), l.check())
}

// check returns errLockReplaced if the directory's lock, which the plugin would take, is not the
// locked file, or that was changed since it was opened.
func (l *fileLock) check() error {
	var now Reservation
	err := l.dir.statusOf("lock", &now)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) || err == nil && !now.isFile(&l.file) {
		return errLockReplaced
	}
	return err
}

// unlock releases the lock. Closing the file is not enough: a process that is being
// started may share the descriptor for a short time.
func (l *fileLock) unlock() error {
	return errors.Join(
		os.NewSyscallError("flock", syscall.Flock(l.fd, syscall.LOCK_UN)),
		os.NewSyscallError("close lock", syscall.Close(l.fd)))
}
