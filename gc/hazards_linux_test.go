// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R6: a file is compared again under the lock. The owner is read again if the file has
// just been made; for others inode and change time are enough.
func TestHazard09ReplacedBetweenJudgingAndDeleting(t *testing.T) {
	for _, ctimeStable := range []bool{false, true} {
		t.Run(fmt.Sprintf("ctimeStable=%t", ctimeStable), func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "dead", old)
			n.reserve("10.0.0.3", "dead2", old)
			if ctimeStable {
				n.waitForStableCtime("10.0.0.3")
			}
			ctx := newCallbackContext(t)
			source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
				// After the answer, as soon as the lock is held.
				ctx.onCheck(func() {
					if n.locked() && n.owner("10.0.0.2") == "dead" {
						n.replace("10.0.0.2", "live", old)
					}
				})
				return []podsource.Pod{other}, nil
			})
			report, err := n.reconciler(source, Options{}).Reconcile(ctx)
			if err != nil {
				t.Fatal(err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Changed, "10.0.0.3": Released})
			if got := n.owner("10.0.0.2"); got != "live" {
				t.Errorf("10.0.0.2 has owner %q, want the new one", got)
			}
		})
	}
}

// R8: another process that waits for the lock gets it before the pass ends.
func TestHazard18APassHoldsTheLock(t *testing.T) {
	n := newNode(t)
	for i := range 4000 {
		n.reserve(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), "leaked", old)
	}
	ctx := newCallbackContext(t)
	got := make(chan int, 1) // the number of leaks left when the other goroutine got the lock
	ctx.onCheck(func() {
		if !n.locked() {
			return
		}
		ctx.onCheck(nil)
		waiting := make(chan struct{})
		go func() {
			lock, err := disk.NewFileLock(filepath.Join(n.dataDir, network1))
			if err != nil {
				t.Error(err)
			}
			defer lock.Close()
			close(waiting)
			if err := lock.Lock(); err != nil {
				t.Error(err)
			}
			list, err := n.store.List(context.Background())
			if err != nil {
				t.Error(err)
			}
			got <- len(list.Reservations)
		}()
		<-waiting
	})
	report, err := n.reconciler(podsource.Static{other}, Options{}).Reconcile(ctx)
	if err != nil || report.Counts()[Released] != 4000 {
		t.Fatalf("released %v, error %v", report.Counts(), err)
	}
	if left := <-got; left == 0 {
		t.Error("the lock was held until the last leak was gone")
	}
	if report.LongestHold >= report.LockHeld {
		t.Errorf("the longest hold is %v of %v in all", report.LongestHold, report.LockHeld)
	}
}

// R8: the lock file is removed and made again while the pass waits for the lock or holds
// it. Nothing is released under a lock that is no longer the directory's.
func TestHazard47LockIsReplacedUnderAPass(t *testing.T) {
	n := newNode(t)
	for i := range 5 {
		n.reserve(fmt.Sprintf("10.0.0.%d", i+2), "leaked", old)
	}
	deadline, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	ctx := newCallbackContext(t)
	ctx.Context = deadline
	replaced := false
	ctx.onCheck(func() {
		if replaced || !n.locked() {
			return
		}
		replaced = true
		// As after rm -rf net/*, an ADD makes the lock file again and takes the lock.
		if err := os.Remove(n.path("lock")); err != nil {
			t.Error(err)
		}
		lock, err := disk.NewFileLock(filepath.Join(n.dataDir, network1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lock.Close() })
		if err := lock.Lock(); err != nil {
			t.Error(err)
		}
	})
	report, err := n.reconciler(podsource.Static{other}, Options{}).Reconcile(ctx)
	if !replaced || !errors.Is(err, hostlocal.ErrLocked) || report.Counts()[Leaked] != 5 {
		t.Errorf("replaced: %t; got %v and error %v, want nothing released, and %v", replaced, report.Counts(), err, hostlocal.ErrLocked)
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
				if err := os.Chmod(n.path("10.0.0.2"), 0); err != nil {
					t.Fatal(err)
				}
			}
			n.reserve("10.0.0.3", hex64("leaked"), old)
			n.reserve("10.0.0.4", hex64("db"), old)
			for _, ip := range []string{"10.0.0.3", "10.0.0.4"} {
				if err := os.Chmod(n.path(ip), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(n.path(""), 0o777); err != nil {
				t.Fatal(err)
			}
			// The error also comes when no answer counts, and when no source is asked.
			if _, err := n.asUser(n.reconciler(podsource.Static{}, Options{})).Reconcile(t.Context()); !errors.Is(err, ErrNoPods) || !errors.Is(err, fs.ErrPermission) {
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

// Many failures make one short error, and the report has them all.
func TestHazard30ThousandsOfFailures(t *testing.T) {
	const most = 16 << 10
	all := func(files int, mode os.FileMode) *node {
		n := newNode(t)
		for i := range files {
			ip := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()
			n.reserve(ip, "leaked", old)
			if err := os.Chmod(n.path(ip), mode); err != nil {
				t.Fatal(err)
			}
		}
		n.file("lock", "", old)
		if err := os.Chmod(n.path("lock"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(n.path(""), 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(n.path(""), 0o755) })
		return n
	}
	for _, c := range []struct {
		reason string
		files  int
		mode   os.FileMode
		want   Reason
		says   string
	}{
		{"none can be removed", 4096, 0o444, ReleaseFailed, "and 4088 more"},
		{"none can be read", 127, 0, OwnerUnreadable, "127 reservations can't be read"}, // with more files, a second thread, which is root, reads a part
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := all(c.files, c.mode)
			report, err := n.asUser(n.reconciler(podsource.Static{other}, Options{})).Reconcile(t.Context())
			if !errors.Is(err, fs.ErrPermission) || len(err.Error()) > most || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got an error of %d bytes: %.500v", len(fmt.Sprint(err)), err)
			}
			for _, e := range report.Reservations {
				if e.Reason != c.want || e.Err == nil {
					t.Fatalf("%s: %s, error %v", e.IP, e.Reason, e.Err)
				}
			}
			if len(report.Reservations) != c.files {
				t.Errorf("%d entries", len(report.Reservations))
			}
		})
	}
}
