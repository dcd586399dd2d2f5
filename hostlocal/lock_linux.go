// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// fileLock is the plugin's lock on a network's directory: flock(2) of the file
// that is named lock in there (plugins, backend/disk NewFileLock, and
// alexflint/go-filemutex).
type fileLock struct {
	path string
	fd   int
	st   syscall.Stat_t // of fd
}

// lock takes the plugin's lock, and makes it if there is none, as the plugin
// does. If somebody else has it, or it is replaced in that moment, the error is
// errLockBusy or errLockReplaced. It never blocks, so that giving up never leaves
// the lock taken later (R8). The file is opened anew each time: the one that was
// waited for may have been removed meanwhile (hazard 47). An error that is
// fs.ErrNotExist means that the directory was removed.
func (d dir) lock() (*fileLock, error) {
	l := &fileLock{path: filepath.Join(d.Name(), "lock")}
	var err error
	if l.fd, err = d.openFile([]byte("lock\x00"), syscall.O_RDWR|syscall.O_CREAT, &l.st); err != nil {
		return nil, fmt.Errorf("%w: opening the lock: %w", ErrLocked, err)
	}
	if err = l.try(); err != nil {
		_ = syscall.Close(l.fd) // unlocks, too
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return l, nil
}

// try locks the file.
func (l *fileLock) try() error {
	_, err := retry(func() (int, error) { return 0, syscall.Flock(l.fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLockBusy
	}
	return cmp.Or(os.NewSyscallError("flock", err), l.check())
}

// check returns errLockReplaced if the file that is locked is not the one that the
// plugin would lock any more, by its path.
func (l *fileLock) check() error {
	var st syscall.Stat_t
	_, err := retry(func() (int, error) { return 0, syscall.Lstat(l.path, &st) })
	if isMissing(err) || err == nil && (st.Ino != l.st.Ino || st.Dev != l.st.Dev) {
		return errLockReplaced
	}
	return os.NewSyscallError("lstat", err)
}

// unlock gives the lock back. Closing alone would not do where a process that is
// being started shares the descriptor for a moment.
func (l *fileLock) unlock() error {
	return errors.Join(
		os.NewSyscallError("flock", syscall.Flock(l.fd, syscall.LOCK_UN)),
		os.NewSyscallError("close lock", syscall.Close(l.fd)))
}
