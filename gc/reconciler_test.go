// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A context that ends between two looks ends the pass.
func TestContextEndsBetweenTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("leaked"), old)
		source := inTurn([]podsource.Answer{netnsAnswer(), recordAnswer([]string{network1}), kubeletAnswer(starts())})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		report, err := n.reconciler(source, Options{}).Reconcile(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrRefused) || len(source.times()) != 1 || report.Duration != 500*time.Millisecond {
			t.Errorf("asked %d times in %v, error %v; want the context's after the first time", len(source.times()), report.Duration, err)
		}
		n.checkReasons(report, map[string]Reason{"10.0.0.2": SourceFailed})
	})
}

// Several callers at once: passes run one at a time, and a caller whose context ends while it
// waits gets an error.
func TestPassesDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inside, most atomic.Int32
		r := newNode(t).reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			most.Store(max(most.Load(), inside.Add(1)))
			time.Sleep(time.Minute)
			inside.Add(-1)
			return []podsource.Pod{other}, nil
		}), Options{SourceTimeout: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		errs := make(chan error)
		for range 3 {
			go func() {
				_, err := r.Reconcile(ctx)
				errs <- err
			}()
		}
		got := make(map[string]int)
		for range 3 {
			err := <-errs
			got[fmt.Sprintf("waited for another pass: %t, refused: %t, the context ended: %t", strings.Contains(text(err), "another pass"),
				errors.Is(err, ErrRefused), errors.Is(err, context.DeadlineExceeded))]++
		}
		time.Sleep(time.Minute) // until the calls of the source return
		if diff := cmp.Diff(map[string]int{
			"waited for another pass: false, refused: false, the context ended: false": 1,
			"waited for another pass: true, refused: false, the context ended: true":   1,
			"waited for another pass: false, refused: true, the context ended: true":   1,
		}, got); diff != "" || most.Load() != 1 {
			t.Errorf("%d passes ran at once; their errors (-want +got):\n%s", most.Load(), diff)
		}
	})
}

// DryRun writes nothing, takes no lock, and reports what would be released. Only selects among
// the leaked reservations: the others are reported as leaked. R12: a second pass does nothing.
// R8: without a leak it does not touch the lock.
func TestDryRunOnlyAndSecondPass(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "gone", old)
	n.reserve("10.0.0.3", "gone", old)
	n.file("10.0.0.4", "", old)
	n.reserve("10.0.0.5", "live", old)
	live := podsource.Static{{IPs: ips("10.0.0.5")}}
	want := map[string]Reason{"10.0.0.2": Unowned, "10.0.0.3": Unowned, "10.0.0.4": EmptyOwner, "10.0.0.5": AddressClaimed}
	report := n.pass(live, Options{DryRun: true})
	n.checkReasons(report, want)
	if n.exists("lock") || report.LockHeld != 0 {
		t.Errorf("a dry run made the lock file, or held the lock for %v", report.LockHeld)
	}
	if got := report.Reservations[3].ContainerID; got != "live" {
		t.Errorf("a dry run shows owner %q, want what the file says", got)
	}
	only := func(r *hostlocal.Reservation) bool { return r.IP == ips("10.0.0.3")[0] || r.ContainerID == "live" }
	report, want["10.0.0.3"] = n.pass(live, Options{Only: only}), ReleasedLeak
	n.checkReasons(report, want)
	r := n.reconciler(live, Options{})
	if report = n.reconcile(r); report.LockHeld == 0 || report.LongestHold == 0 {
		t.Errorf("the lock was held for %v, at once for %v", report.LockHeld, report.LongestHold)
	}
	must(t, os.Remove(n.path("lock")))
	report = n.reconcile(r)
	n.checkReasons(report, map[string]Reason{"10.0.0.5": AddressClaimed})
	if report.LockHeld != 0 || n.exists("lock") {
		t.Errorf("lock held for %v, want a pass without a leak not to take the lock", report.LockHeld)
	}
}

// An unusable directory is a clear error, and nothing is released in it. See also hazards 63 and 97.
func TestBadDirectory(t *testing.T) {
	t.Run("the lock can't be opened", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		must(t, os.Mkdir(n.path("lock"), 0o755))
		report, err := n.reconciler(podsource.Static{other}, Options{}).Reconcile(t.Context())
		if !errors.Is(err, hostlocal.ErrLocked) {
			t.Errorf("got error %v, want %v", err, hostlocal.ErrLocked)
		}
		n.checkReasons(report, map[string]Reason{"10.0.0.2": NotTried})
	})
	t.Run("another network can't be listed: it may hold siblings", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		elsewhere := t.TempDir()
		must(t, os.Symlink(elsewhere, filepath.Join(n.dataDir, "second")))
		source := inTurn(plain(other))
		report, err := n.reconciler(source, Options{}).Reconcile(t.Context())
		if s := text(err); !strings.Contains(s, "listing reservations in ") || !strings.Contains(s, "second") || errors.Is(err, ErrRefused) {
			t.Errorf("got error %v, want one of the listing, about the other network", err)
		}
		if len(source.times()) != 0 || len(report.Reservations) != 0 || !n.exists("10.0.0.2") {
			t.Errorf("asked %d times, got %+v, want nothing judged", len(source.times()), report.Reservations)
		}
	})
}

// The core has no dependencies that only some agents need.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../hostlocal", "../podsource").Output()
	must(t, err)
	for _, banned := range []struct{ path, reason string }{
		{"k8s.io/client-go", "agents without a Kubernetes client embed this too"},
		{"google.golang.org/grpc", "sources that speak gRPC are modules of their own"},
		{"github.com/prometheus", "metrics are a module of their own"},
		{"k8s.io/api/", "a pod here is a few fields, not the API's type"},
		{"github.com/vishvananda", "nothing here touches interfaces"},
	} {
		if strings.Contains(string(out), banned.path) {
			t.Errorf("the core depends on %s: %s", banned.path, banned.reason)
		}
	}
	// Only gc imports the other two.
	for pkg, banned := range map[string]string{"../hostlocal": "podsource", "../podsource": "hostlocal-gc/hostlocal-gc/hostlocal"} {
		out, err := exec.Command("go", "list", "-deps", pkg).Output()
		must(t, err)
		if strings.Contains(string(out), banned) || strings.Contains(string(out), "hostlocal-gc/gc") {
			t.Errorf("%s depends on %s or gc", pkg, banned)
		}
	}
}
