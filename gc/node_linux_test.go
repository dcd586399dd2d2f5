// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// isLocked reports whether the plugin's lock is held.
func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}

// flockOf takes the lock of a file or directory, as another process does that is stopped while it has it.
func flockOf(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	return func() { _ = f.Close() }
}

// A wrappedDisk is a data directory whose calls go through functions of a test.
type wrappedDisk struct {
	dataDir
	inList, inRelease func(call func())
}

func (d wrappedDisk) List(ctx context.Context) (list hostlocal.Listing, err error) {
	d.inList(func() { list, err = d.dataDir.List(ctx) })
	return list, err
}

func (d wrappedDisk) Release(ctx context.Context, rs ...*hostlocal.Reservation) (done hostlocal.ReleaseResult, err error) {
	d.inRelease(func() { done, err = d.dataDir.Release(ctx, rs...) })
	return done, err
}

// The time of the node's boot ends the claims of starting pods (R4).
func TestHazard40BootIsTheKernels(t *testing.T) {
	kernels := func() time.Duration {
		content, err := os.ReadFile("/proc/uptime") // in seconds with two digits, rounded down
		must(t, err)
		first, _, _ := strings.Cut(string(content), " ")
		seconds, err := strconv.ParseFloat(first, 64)
		must(t, err)
		return time.Duration(seconds * float64(time.Second))
	}
	r, err := New(newNode(t).store, []string{network1}, podsource.Static{other}, Options{})
	must(t, err)
	defer uptime.Replaced.Store(uptime.Replaced.Swap(nil))
	before := kernels()
	boot, mono, now := boottime.Since(), boottime.Monotonic(), r.now()
	if (now.mono - mono).Abs() > 10*time.Millisecond { // all processes share it (hazard 81)
		t.Errorf("the monotonic clock shows %v, the kernel's %v", now.mono, mono)
	}
	after := kernels() + 10*time.Millisecond
	if boot < before || now.boot < boot || now.boot > after {
		t.Errorf("the node has been up for %v, and then for %v; the kernel said %v before, and %v after", boot, now.boot, before, after)
	}
}
