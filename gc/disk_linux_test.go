// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// flockOf takes a lock, as another process does that is stopped while it has it.
func flockOf(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	return func() { _ = f.Close() }
}

// The lock of a network is held for longer than an access to the disk may take: the error says so.
func TestLockIsHeldLongerThanTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", old)
		unlock := flockOf(t, filepath.Join(n.dataDir, network1, "lock"))
		r := n.reconciler(podsource.Static{other}, Options{SourceTimeout: 300 * time.Millisecond})
		if _, err := r.Reconcile(t.Context()); !errors.Is(err, hostlocal.ErrLocked) {
			t.Errorf("not ErrLocked: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // the caller's ends first
		defer cancel()
		begun := time.Now()
		if _, err := r.Reconcile(ctx); !errors.Is(err, hostlocal.ErrLocked) || time.Since(begun) != 100*time.Millisecond {
			t.Errorf("the next one, after %v: %v", time.Since(begun), err)
		}
		unlock()
		synctest.Wait()
	})
}
