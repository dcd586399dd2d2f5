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

// lock takes the plugin's lock, or returns errLockBusy if somebody else has it for
// a second. It can only be waited for in a system call that nothing interrupts.
// So a goroutine waits for it, and when that is given up, it lets go of the lock
// in the moment it gets it.
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
				_ = l.Unlock() // nobody is left to hear of an error
			}
			_ = l.Close()
		}()
		return nil, fmt.Errorf("%w: %w", ErrLocked, errLockBusy)
	}
}

// check has nothing to do on Windows, which does not remove a file that is open.
// Elsewhere it would (hazard 47), but no node runs there.
func (*fileLock) check() error { return nil }

func (l *fileLock) unlock() error { return errors.Join(l.Unlock(), l.Close()) }
