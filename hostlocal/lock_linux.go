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
// lock taken later (R8). fs.ErrNotExist means that the directory was removed;
// every other error wraps ErrLocked.
func (locker) lock(ctx context.Context, d *dir, wait bool) (*fileLock, error) {
	for pause := minLockPoll; ; pause = min(2*pause, maxLockPoll) {
		l, err := d.tryLock()
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errLockBusy) && !wait:
			return nil, err
		case !errors.Is(err, errLockBusy) && !errors.Is(err, errLockReplaced):
			return nil, fmt.Errorf("%w: %w", ErrLocked, err)
		}
		if !sleep(ctx, pause) {
			return nil, fmt.Errorf("%w: %w: %w", ErrLocked, err, ctx.Err())
		}
	}
}

// tryLock takes the lock if it is free. The file is opened anew each time: the
// one that was waited for may have been removed meanwhile (hazard 47).
func (d *dir) tryLock() (_ *fileLock, err error) {
	const flags = syscall.O_RDWR | syscall.O_CREAT | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC | syscall.O_NOCTTY
	fd, err := retry(func() (int, error) { return syscall.Openat(d.fd, "lock", flags, 0o750) })
	if err != nil {
		var st syscall.Stat_t
		if d.fstatat([]byte("lock\x00"), &st) == nil && st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			return nil, lockTypeError(&st)
		}
		return nil, os.NewSyscallError("openat lock", err)
	}
	defer func() {
		if err != nil {
			_ = syscall.Close(fd) // unlocks, too
		}
	}()
	l := &fileLock{dir: d, fd: fd}
	if err := syscall.Fstat(fd, &l.st); err != nil {
		return nil, os.NewSyscallError("fstat lock", err)
	}
	if l.st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, lockTypeError(&l.st)
	}
	_, err = retry(func() (int, error) { return 0, syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLockBusy
	}
	if err != nil {
		return nil, os.NewSyscallError("flock", err)
	}
	return l, l.check()
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
