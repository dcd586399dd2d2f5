// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
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

// unprivileged calls do in a thread with the file system rights of an ordinary user, who
// may reach the node's directory. No permission would stop root.
func (n *node) unprivileged(do func()) {
	n.t.Helper()
	if os.Geteuid() != 0 {
		do()
		return
	}
	for dir := n.dataDir; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		must(n.t, err)
		must(n.t, os.Chmod(dir, info.Mode()|0o555))
	}
	const nobody = 65534
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	setfsuid(n.t, nobody)
	defer setfsuid(n.t, 0)
	do()
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

// asUser makes a reconciler access the disk as an ordinary user.
func (n *node) asUser(r *Reconciler) *Reconciler {
	r.disk = wrappedDisk{r.disk, n.unprivileged, n.unprivileged}
	return r
}

// setfsuid sets the user ID with which the calling thread accesses files. The thread
// loses root's capabilities for files (capabilities(7)).
func setfsuid(t testing.TB, uid int) {
	t.Helper()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0); errno != 0 {
		t.Fatal(errno)
	}
}
