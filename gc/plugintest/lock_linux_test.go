// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package plugintest_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// hold takes the plugin's lock. A second call of unlock does nothing, so that a test that
// fails can unlock before it waits for its goroutines.
func hold(t *testing.T, p *plugintest.Plugin) (unlock func()) {
	t.Helper()
	// The plugin's own code opens the file so that child processes inherit it. A
	// plugin that is started here would then hold the lock that it waits for, and
	// would wait for ever if this process were killed.
	lock, err := os.Open(filepath.Join(p.Dir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A DEL and an ADD give the address of a leak to another container: while the source is asked,
// or between judging and removing, while the pass waits for the lock. The plugin's own code
// replaces the owner.
func TestHazard09AddressReusedBeforeTheRelease(t *testing.T) {
	for _, row := range []struct {
		reason string
		asked  bool
		del    bool
		add    string // the container that gets the address then, if any
		want   gc.Reason
		disk   map[string]string
	}{
		{"the reservation has another owner when it is judged (R6)",
			true, true, "new", gc.FileChanged, map[string]string{"10.1.0.5": "new\r\neth0"}},
		{"the reservation has another owner when it would be removed (R6)",
			false, true, "new", gc.FileChanged, map[string]string{"10.1.0.5": "new\r\neth0"}},
		{"a new ADD of the old owner, which only the file's identity shows (R6)",
			false, true, "old", gc.FileChanged, map[string]string{"10.1.0.5": "old\r\neth0"}},
		{"a reservation that is gone is no error (R6)", false, true, "", gc.FileGone, map[string]string{}},
		{"the wait alone changes nothing", false, false, "", gc.ReleasedLeak, map[string]string{}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			p := plugintest.New(t, "podnet", one4)
			ip := add(t, p, "old", "eth0")[0]
			plugin, err := disk.New(p.Network, p.DataDir)
			if err := errors.Join(err, os.Link(p.File(ip), filepath.Join(p.DataDir, "old"))); err != nil { // the inode is not used again
				t.Fatal(err)
			}
			defer plugin.Close()
			swap := func() {
				if row.del {
					if err := plugin.ReleaseByID("old", "eth0"); err != nil {
						t.Error(err)
					}
				}
				if row.add != "" {
					if ok, err := plugin.Reserve(row.add, "eth0", ip.AsSlice(), "0"); !ok || err != nil {
						t.Errorf("reserving the address again: %v, %v", ok, err)
					}
				}
			}
			unlock := hold(t, p)
			t.Cleanup(unlock)
			synctest.Test(t, func(t *testing.T) {
				age(t, p, time.Hour, ip)
				source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
					if row.asked {
						swap()
						age(t, p, time.Hour, ip)
					}
					return []podsource.Pod{someone}, nil
				})
				var report gc.Report
				var passErr error
				passed := inBackground(t, func() {
					report, passErr = reconcilerOf(t, p, source, gc.Options{}).Reconcile(t.Context())
				})
				synctest.Wait() // it sleeps until it tries to take the lock again
				select {
				case <-passed:
					t.Fatal("the pass did not wait for the plugin's lock (R8)")
				default:
				}
				if !row.asked {
					swap()
				}
				unlock()
				<-passed
				if passErr != nil {
					t.Error(passErr)
				}
				wantDiff(t, "report", row.reason, map[string]gc.Reason{ip.String(): row.want}, reasons(report))
			})
			wantDiff(t, "disk", row.reason, row.disk, reservations(t, p))
		})
	}
}

// An ADD fails after it has reserved, because the plugin reserves before it checks the
// network namespace. No DEL follows, and there is never a sandbox.
func TestHazard21FailedAdd(t *testing.T) {
	p := plugintest.New(t, "podnet", six4, six6)
	p.NetNS = "/proc/self/ns/net"
	_, err := p.Add(t.Context(), "failed", "eth0")
	wantError(t, err, "should not be the same", "the namespace is the plugin's own")
	wantDiff(t, "disk", "the ADD that failed has reserved", map[string]string{
		"10.1.0.2": "failed\r\neth0", "fd00:1::2": "failed\r\neth0",
	}, reservations(t, p))
	age(t, p, time.Hour, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	report := reconcile(t, p, podsource.Static{someone}, gc.Options{})
	wantDiff(t, "counts", "no sandbox has it (R3)", map[gc.Verdict]int{gc.Released: 2}, report.Counts())
	wantDiff(t, "disk after the pass", "no sandbox has it (R3)", map[string]string{}, reservations(t, p))
}
