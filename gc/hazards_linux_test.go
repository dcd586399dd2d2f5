// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R6: what the lock protects is compared once more under the lock. Of a file that
// has just been made its owner is read again, too; of others inode and change
// time are enough.
func TestHazard09ReplacedBetweenJudgingAndDeleting(t *testing.T) {
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprintf("settled=%t", settled), func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "dead", old)
			n.reserve("10.0.0.3", "dead2", old)
			if settled {
				n.settle("10.0.0.3")
			}
			ctx := newTurnContext(t)
			source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
				// From the answer on, at the first look under the lock.
				ctx.on(func() {
					if n.locked() && n.owner("10.0.0.2") == "dead" {
						n.replace("10.0.0.2", "live", old)
					}
				})
				return []podsource.Pod{other}, nil
			})
			report, err := New(n.store, source, Options{}).Reconcile(ctx)
			if err != nil {
				t.Fatal(err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Changed, "10.0.0.3": Released})
			if got := n.owner("10.0.0.2"); got != "live" {
				t.Errorf("10.0.0.2 is of %q now, want the new owner", got)
			}
		})
	}
}

// settle waits until a file has its change time for longer than any clock's tick.
func (n *node) settle(ip string) {
	n.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(n.path(ip), &st); err != nil {
		n.t.Fatal(err)
	}
	for changed := time.Unix(st.Ctim.Unix()); time.Since(changed) < 200*time.Millisecond; {
		runtime.Gosched()
	}
}

// R8: whoever waits for the lock gets it while the pass still goes on.
func TestHazard18APassHoldsTheLock(t *testing.T) {
	n := newNode(t)
	for i := range 4000 {
		n.reserve(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), "leaked", old)
	}
	ctx := newTurnContext(t)
	got := make(chan int, 1) // how many leaks were left when the other one got the lock
	ctx.on(func() {
		if !n.locked() {
			return
		}
		ctx.on(nil)
		asking := make(chan struct{})
		go func() {
			lock, err := disk.NewFileLock(filepath.Join(n.dataDir, network1))
			if err != nil {
				t.Error(err)
			}
			defer lock.Close()
			close(asking)
			if err := lock.Lock(); err != nil {
				t.Error(err)
			}
			rs, err := n.store.Scan(context.Background())
			if err != nil {
				t.Error(err)
			}
			got <- len(rs)
		}()
		<-asking
	})
	report, err := New(n.store, podsource.Static{other}, Options{}).Reconcile(ctx)
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
