// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// While somebody else holds the lock, it is tried for again after a pause that
// grows from the first of these to the second. An ADD holds it for a few
// milliseconds.
const (
	minLockPoll = time.Millisecond
	maxLockPoll = 10 * time.Millisecond
)

// locker has no state here: a lock that is polled for leaves nothing behind
// when the wait for it ends.
type locker struct{}

// fileLock is the plugin's lock on a network's directory: flock(2) of the file
// that is named lock in there (plugins, backend/disk NewFileLock, and
// alexflint/go-filemutex).
type fileLock struct {
	dir *dir
	fd  int
	st  syscall.Stat_t // of fd
}

// lock takes the plugin's lock. While somebody else has it, lock waits until ctx
// ends, or returns errLockBusy if it is not to wait. It asks for the lock
// without blocking and pauses in between, so that giving up never leaves the
// lock taken later (R8). The file is opened anew each time: the one that was
// waited for may have been removed meanwhile (hazard 47). An error that is
// fs.ErrNotExist means that the directory was removed.
func (locker) lock(ctx context.Context, d *dir, wait bool) (*fileLock, error) {
	for pause := minLockPoll; ; pause = min(2*pause, maxLockPoll) {
		l, err := d.openLock()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrLocked, err)
		}
		if err = l.try(); err == nil {
			return l, nil
		}
		_ = syscall.Close(l.fd) // unlocks, too
		if !errors.Is(err, errLockBusy) {
			return nil, fmt.Errorf("%w: %w", ErrLocked, err)
		}
		if !wait {
			return nil, err
		}
		if !sleep(ctx, pause) {
			return nil, fmt.Errorf("%w: %w: %w", ErrLocked, err, ctx.Err())
		}
	}
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
