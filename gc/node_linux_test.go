// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
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
		must(n.t, err, os.Chmod(dir, info.Mode()|0o555))
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

// One file can't be read: the pass returns an error, keeps the possible siblings, and
// judges the rest.
func TestHazard68OneFileOfManyCanNotBeRead(t *testing.T) {
	for _, c := range []struct {
		reason string
		age    time.Duration
		want   Verdict
	}{
		{"it is young", young, Failed},
		{"it is old, and no pod has its address", old, Released},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.age) // readable for root alone
			if os.Geteuid() != 0 {
				must(t, os.Chmod(n.path("10.0.0.2"), 0))
			}
			n.reserve("10.0.0.3", hex64("leaked"), old)
			n.reserve("10.0.0.4", hex64("db"), old)
			must(t, os.Chmod(n.path("10.0.0.3"), 0o644), os.Chmod(n.path("10.0.0.4"), 0o644), os.Chmod(n.path(""), 0o777))
			// The error also comes when no answer counts, and when no source is asked.
			nobody := n.asUser(n.reconciler(podsource.Static{}, Options{}))
			if _, err := nobody.Reconcile(t.Context()); !errors.Is(err, ErrNoPods) || !errors.Is(err, fs.ErrPermission) {
				t.Errorf("without an answer: error %v", err)
			}
			elsewhere := n.asUser(n.reconcilerOf([]string{"second"}, podsource.Static{}, Options{}))
			if _, err := elsewhere.AtStartup(t.Context()); errors.Is(err, ErrNoPods) || !errors.Is(err, fs.ErrPermission) {
				t.Errorf("in the hook: error %v", err)
			}
			report, err := n.asUser(n.reconciler(answers(criAnswer(sandbox("1", hex64("db")))), Options{})).Reconcile(t.Context())
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "10.0.0.2") || strings.Contains(err.Error(), "reservations") {
				t.Errorf("got error %v, want one about the file", err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Failed, "10.0.0.3": c.want, "10.0.0.4": InUse})
			if err := report.Reservations[0].Err; !errors.Is(err, fs.ErrPermission) {
				t.Errorf("the entry's error is %v", err)
			}
		})
	}
}

// Many files that can't be read make one short error, and the report has them all.
func TestHazard30ThousandsOfFailures(t *testing.T) {
	n := newNode(t)
	for i := range 1024 {
		ip := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()
		n.reserve(ip, "leaked", old)
		must(t, os.Chmod(n.path(ip), 0))
	}
	report, err := n.asUser(n.reconciler(podsource.Static{other}, Options{})).Reconcile(t.Context())
	says := strings.Contains(text(err), "1024 reservations can't be read")
	if !says || !errors.Is(err, fs.ErrPermission) || len(err.Error()) > 16<<10 || len(report.Reservations) != 1024 {
		t.Errorf("got an error of %d bytes and %d entries: %.500v", len(text(err)), len(report.Reservations), err)
	}
	for _, e := range report.Reservations {
		if e.Reason != OwnerUnreadable || e.Err == nil {
			t.Fatalf("%s: %s, error %v", e.IP, e.Reason, e.Err)
		}
	}
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
