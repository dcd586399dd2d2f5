// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A context that says that it is done, and not why, ends Release as any other does.
func TestReleaseContextIsDoneWithoutAnError(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		slow := hookContext{Context: ctx, err: func() error {
			time.Sleep(maxHold)
			return nil
		}}
		result, err := s.Release(slow, pointers(rs)...)
		if result.Outcomes[0] != Released || result.Outcomes[3] != NotTried || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	})
}

// An error of the context's that looks like that of a directory which is gone.
func TestReleaseContextErrorIsNotExist(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	gone := hookContext{Context: t.Context(), err: func() error { return fmt.Errorf("the node: %w", fs.ErrNotExist) }}
	result, err := s.Release(gone, pointers(list(t, s))...)
	if result.Outcomes[0] != NotTried || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
}

// One replacement of the lock is no reason to give up, however long the hold took.
func TestReleaseLockReplacedInASlowHold(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		slow := hookContext{Context: t.Context(), err: atCall(1, func() {
			time.Sleep(2 * maxLockWait)
			if err := os.Remove(filepath.Join(dirOf(s), "lock")); err != nil {
				t.Error(err)
			}
		})}
		if result, err := s.Release(slow, pointers(rs)...); result.Outcomes[0] != Released || err != nil {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	})
}

// A zone is a part of no reservation's address, and could lead out of the directory.
func TestReleaseZone(t *testing.T) {
	s := newStore(t)
	write(t, at(s, "fd00::1"), "abc\r\neth0")
	mkdir(t, filepath.Join(dirOf(s), "fd00::1%"))
	outside := filepath.Join(s.DataDir(), "outside")
	if err := os.Link(at(s, "fd00::1"), outside); err != nil {
		t.Fatal(err)
	}
	r := list(t, s)[0]
	r.IP = r.IP.WithZone("/../../outside")
	if result, err := s.Release(t.Context(), &r); result.Outcomes[0] != Failed || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error("a file outside of the directory was removed")
	}
}
