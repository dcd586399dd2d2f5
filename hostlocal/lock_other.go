// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// fileLock is the plugin's lock on a network's directory, taken by its own code.
type fileLock struct{ *disk.FileLock }

// lock takes the plugin's lock, or returns errLockBusy if another process holds it for a
// second. The only way to wait is a system call that can't be interrupted. So a goroutine
// waits, and if lock has given up by then, the goroutine releases the lock at once.
func (d dir) lock() (*fileLock, error) {
	l, err := disk.NewFileLock(d.Name())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	locked := make(chan error, 1)
	go func() { locked <- l.Lock() }()
	select {
	case err := <-locked:
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrLocked, errors.Join(err, l.Close()))
		}
		return &fileLock{l}, nil
	case <-time.After(time.Second):
		go func() {
			if <-locked == nil {
				_ = l.Unlock() // lock has returned, so there is no caller to tell
			}
			_ = l.Close()
		}()
		return nil, fmt.Errorf("%w: %w", ErrLocked, errLockBusy)
	}
}

// check does nothing. Windows does not remove an open file. The other systems do
// (hazard 47), but no node runs on them.
func (*fileLock) check() error { return nil }

func (l *fileLock) unlock() error { return errors.Join(l.Unlock(), l.Close()) }
