// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// locker holds, by path, a semaphore for each lock that this process waits for or
// holds. The plugin's lock can only be waited for in a system call that nothing
// interrupts, so a goroutine waits. With the semaphore there is never more than
// one for each lock, however often callers give up.
type locker struct{ sems sync.Map }

// fileLock is the plugin's lock on a network's directory.
type fileLock struct {
	*disk.FileLock
	dir  *dir
	info fs.FileInfo // of the file that is locked
	sem  chan struct{}
}

// lock takes the plugin's lock, and waits for it until ctx ends. It always
// waits: the plugin's lock can't be tried. When the caller gives up, the
// goroutine that waits gives the lock back in the moment it gets it (R8).
// fs.ErrNotExist means that the directory was removed; every other error wraps
// ErrLocked.
func (k *locker) lock(ctx context.Context, d *dir, _ bool) (*fileLock, error) {
	value, _ := k.sems.LoadOrStore(d.path, make(chan struct{}, 1))
	l := &fileLock{dir: d, sem: value.(chan struct{})}
	done := ctx.Done()
	select {
	case l.sem <- struct{}{}:
	case <-done:
		return nil, fmt.Errorf("%w: this process waits for it already: %w", ErrLocked, ctx.Err())
	}
	got := make(chan error) // unbuffered: an answer is taken, or known to be unwanted
	go func() {
		err := l.take()
		select {
		case got <- err:
		case <-done:
			if err == nil {
				_ = l.unlock() // nobody is left to hear of an error
			} else {
				<-l.sem
			}
		}
	}()
	select {
	case err := <-got:
		if err == nil {
			return l, nil
		}
		<-l.sem
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	case <-done:
		return nil, fmt.Errorf("%w: %w: %w", ErrLocked, errLockBusy, ctx.Err())
	}
}

// take waits for the lock for as long as it takes, and takes it anew if it was
// replaced meanwhile. It works by path alone: the caller may have closed the
// directory.
func (l *fileLock) take() (err error) {
	// Opening a pipe of that name would wait for a writer.
	path := filepath.Join(l.dir.path, "lock")
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("the lock %s is %w (%s)", path, errNotRegular, info.Mode())
	}
	if l.FileLock, err = disk.NewFileLock(l.dir.path); err != nil {
		return err
	}
	if l.info, err = os.Lstat(path); err == nil {
		os.SameFile(l.info, l.info) // Windows reads a file's number only when it is asked for
		err = l.Lock()
	}
	if err == nil {
		err = l.check()
	}
	if err != nil {
		_ = l.Close() // unlocks, too
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errLockReplaced) {
		return l.take() // or the directory is gone, which the next try says
	}
	return err
}

// check returns errLockReplaced if the file that is locked is not the
// directory's lock any more.
func (l *fileLock) check() error {
	info, err := os.Lstat(filepath.Join(l.dir.path, "lock"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, l.info) {
		return errLockReplaced
	}
	return err
}

// unlock gives the lock back.
func (l *fileLock) unlock() error {
	defer func() { <-l.sem }()
	return errors.Join(l.Unlock(), l.Close())
}
