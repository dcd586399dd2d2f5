// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// lock takes the plugin's own lock on the folder and returns its release. While
// the plugin's ADD or DEL, or another collector, holds it, lock waits until ctx
// ends (R8).
//
// The plugin's lock can only be waited for in a system call that nothing
// interrupts. So a goroutine waits for it, and when the caller gives up, that
// goroutine lets go of the lock in the moment it gets it. While it is still
// waiting it holds the store's turn, so that a process never has more than one
// thread a Store waiting, however often it gives up.
func (s *Store) lock(ctx context.Context) (unlock func() error, err error) {
	done := ctx.Done()
	select {
	case s.turn <- struct{}{}:
	case <-done:
		return nil, fmt.Errorf("waiting for the lock of %s behind another release of this process: %w", s.dir(), ctx.Err())
	}
	type answer struct {
		lock *disk.FileLock
		err  error
	}
	got := make(chan answer) // unbuffered: an answer is taken, or known to be unwanted
	go func() {
		l, err := takeLock(s.dir())
		select {
		case got <- answer{l, err}:
		case <-done:
			if l != nil {
				_ = l.Close() // unlocks; nobody is left to hear of an error
			}
			<-s.turn
		}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			<-s.turn
			return nil, a.err
		}
		return func() error {
			defer func() { <-s.turn }()
			// Close unlocks too, but leaves the file open and locked when that
			// fails, and then ADDs would wait for as long as this process lives.
			err := a.lock.Unlock()
			if err != nil {
				err = errors.Join(err, a.lock.Unlock())
			}
			if err = errors.Join(err, a.lock.Close()); err != nil {
				return fmt.Errorf("unlocking %s: %w", s.dir(), err)
			}
			return nil
		}, nil
	case <-done:
		return nil, fmt.Errorf("waiting for the lock of %s: %w", s.dir(), ctx.Err())
	}
}

// takeLock waits for the lock for as long as it takes.
func takeLock(dir string) (*disk.FileLock, error) {
	// Opening a pipe of that name would wait for ever for a writer.
	path := filepath.Join(dir, "lock")
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist): // the plugin makes it at need, and so does NewFileLock
	case err != nil:
		return nil, fmt.Errorf("opening the lock: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("opening the lock %s: %w (%s); host-local can't lock it either", path, errNotRegular, info.Mode())
	}
	l, err := disk.NewFileLock(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of %s: %w", dir, err)
	}
	if err := l.Lock(); err != nil {
		_ = l.Close() // it was not locked, and the error that counts is the one returned
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return l, nil
}
