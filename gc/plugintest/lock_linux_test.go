// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package plugintest_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// one4 has a single address, which one container gets after the other.
var one4 = plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.5", End: "10.1.0.5"}

// awaitQueue returns when the kernel reports that a plugin waits for the lock of the
// network's directory, so that it is blocked and not just slow. It fails the test if the
// plugin ends before.
func awaitQueue(t *testing.T, p *plugintest.Plugin, done <-chan struct{}) {
	t.Helper()
	info, err := os.Stat(filepath.Join(p.Dir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	inode := strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
	for {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(locks)) {
			// "1: -> FLOCK  ADVISORY  WRITE 4711 fe:00:12345 0 EOF"
			f := strings.Fields(line)
			if len(f) == 9 && f[1] == "->" && strings.HasSuffix(f[6], ":"+inode) {
				return
			}
		}
		select {
		case <-done:
			t.Fatalf("done without waiting for the plugin's lock (R8)")
		default:
			runtime.Gosched()
		}
	}
}

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

// While another process holds the lock, the plugin's ADD waits, and a release waits until
// its context ends. A release that gave up does not take the lock later.
func TestHazard18LockIsHeld(t *testing.T) {
	p := plugintest.New(t, "podnet", six4)
	lost := add(t, p, "lost", "eth0")[0]
	store := hostlocal.New(p.DataDir)
	rs, err := store.List(t.Context())
	if err != nil || len(rs) != 1 {
		t.Fatal(rs, err)
	}
	unlock := hold(t, p)
	t.Cleanup(unlock)
	before := files(t, p)

	var addErr error
	added := inBackground(t, func() { _, addErr = p.Add(t.Context(), "new", "eth0") })
	t.Cleanup(unlock)
	awaitQueue(t, p, added)

	const timeout = 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		done, err := store.Release(ctx, &rs[0])
		if !errors.Is(err, hostlocal.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("release that gave up: got error %v, want ErrLocked and the context's", err)
		}
		if waited := time.Since(begun); waited != timeout {
			t.Errorf("release gave up after %v, want %v, when its context ends", waited, timeout)
		}
		wantDiff(t, "release that gave up", "it never had the lock (R8)",
			hostlocal.ReleaseResult{Outcomes: []hostlocal.Outcome{hostlocal.NotTried}}, done)
	})
	wantDiff(t, "disk while the lock is held", "neither ADD nor release did anything", before, files(t, p))
	select {
	case <-added:
		t.Error("ADD ended while the lock was held")
	default:
	}

	unlock()
	<-added
	if addErr != nil {
		t.Errorf("ADD that had waited: %v", addErr)
	}
	done, err := store.Release(t.Context(), &rs[0])
	if err != nil {
		t.Fatal(err)
	}
	wantDiff(t, "release after it", "the one that gave up left nothing locked", []hostlocal.Outcome{hostlocal.Released}, done.Outcomes)
	if err := p.Del(t.Context(), "new", "eth0"); err != nil {
		t.Errorf("DEL after it: %v", err)
	}
	wantDiff(t, "disk", "both have ended; "+lost.String()+" was released", map[string]string{}, reservations(t, p))
}

// After a pass has judged a reservation, and before it removes the file, a DEL and an ADD
// give the address to another container. The pass waits for the lock, under which the
// plugin's own code replaces the owner.
func TestHazard09AddressReusedBeforeTheRelease(t *testing.T) {
	for _, row := range []struct {
		name   string
		reason string
		swap   func(t *testing.T, s *disk.Store)
		want   gc.Reason
		disk   map[string]string
	}{
		{
			name: "another container", reason: "the reservation has another owner (R6)",
			swap: func(t *testing.T, s *disk.Store) {
				t.Helper()
				swap(t, s, "new")
			},
			want: gc.FileChanged, disk: map[string]string{"10.1.0.5": "new\r\neth0"},
		},
		{
			name: "the same container again", reason: "a new ADD of the old owner, which only the file's identity shows (R6)",
			swap: func(t *testing.T, s *disk.Store) {
				t.Helper()
				swap(t, s, "old")
			},
			want: gc.FileChanged, disk: map[string]string{"10.1.0.5": "old\r\neth0"},
		},
		{
			name: "deleted alone", reason: "a reservation that is gone is no error (R6)",
			swap: func(t *testing.T, s *disk.Store) {
				t.Helper()
				if err := s.ReleaseByID("old", "eth0"); err != nil {
					t.Error(err)
				}
			},
			want: gc.FileGone, disk: map[string]string{},
		},
		{
			name: "nothing happens", reason: "the wait alone changes nothing",
			swap: func(*testing.T, *disk.Store) {},
			want: gc.ReleasedLeak, disk: map[string]string{},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := plugintest.New(t, "podnet", one4)
			ip := add(t, p, "old", "eth0")[0]
			plugin, err := disk.New(p.Network, p.DataDir)
			if err != nil {
				t.Fatal(err)
			}
			unlock := hold(t, p)
			t.Cleanup(unlock)
			synctest.Test(t, func(t *testing.T) {
				age(t, p, time.Hour, ip)
				var report gc.Report
				var passErr error
				passed := inBackground(t, func() {
					report, passErr = reconcilerOf(t, p, podsource.Static{someone}, gc.Options{}).Reconcile(t.Context())
				})
				synctest.Wait() // it sleeps until it tries to take the lock again
				select {
				case <-passed:
					t.Fatal("the pass did not wait for the plugin's lock (R8)")
				default:
				}
				awaitTick(t, p.File(ip))
				row.swap(t, plugin)
				unlock()
				<-passed
				if passErr != nil {
					t.Error(passErr)
				}
				wantDiff(t, "report", row.reason, map[string]gc.Reason{ip.String(): row.want}, reasons(report))
			})
			wantDiff(t, "disk", row.reason, row.disk, reservations(t, p))
			if err := plugin.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// awaitTick returns when a new file gets a later change time than the given one. Many
// kernels take that time from a clock that ticks every few milliseconds.
func awaitTick(t *testing.T, path string) {
	t.Helper()
	changed := func(path string) (at time.Time) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
	}
	then := changed(path)
	for probe := filepath.Join(t.TempDir(), "probe"); ; runtime.Gosched() {
		if err := os.WriteFile(probe, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if changed(probe).After(then) {
			return
		}
	}
}

// swap does what DEL and ADD do under the lock, which must be held.
func swap(t *testing.T, s *disk.Store, containerID string) {
	t.Helper()
	if err := s.ReleaseByID("old", "eth0"); err != nil {
		t.Error(err)
	}
	if ok, err := s.Reserve(containerID, "eth0", net.ParseIP("10.1.0.5"), "0"); !ok || err != nil {
		t.Errorf("reserving the address again: %v, %v", ok, err)
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
