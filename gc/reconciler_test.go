// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A context that ends between two looks ends the pass.
func TestContextEndsBetweenTwoLooks(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("leaked"), old)
		source := inTurn([]podsource.Answer{netnsAnswer(), recordAnswer([]string{network1}), kubeletAnswer(starts())})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		report, err := n.reconciler(source, Options{}).Reconcile(ctx)
		refused := errors.Is(err, context.DeadlineExceeded) && errors.Is(err, ErrRefused)
		if !refused || len(source.times()) != 1 || report.Duration != 500*time.Millisecond {
			t.Errorf("asked %d times in %v, error %v; want the context's after the first time", len(source.times()), report.Duration, err)
		}
		n.checkReasons(report, map[string]Reason{"10.0.0.2": SourceFailed})
	})(t)
}

// Several callers at once: passes run one at a time, and a caller whose context ends while it
// waits gets an error.
func TestPassesDoNotOverlap(t *testing.T) {
	inBubble(func(t *testing.T) {
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
			got[fmt.Sprintf("waited for another pass: %t, refused: %t, the context ended: %t", strings.Contains(fmt.Sprint(err), "another pass"),
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
	})(t)
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
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	must(t, os.Symlink(t.TempDir(), filepath.Join(n.dataDir, "second")))
	source := inTurn(plain(other))
	report, err := n.reconciler(source, Options{}).Reconcile(t.Context())
	if s := fmt.Sprint(err); !strings.Contains(s, "listing reservations in ") || !strings.Contains(s, "second") || errors.Is(err, ErrRefused) {
		t.Errorf("got error %v, want one of the listing, about the other network", err)
	}
	if len(source.times()) != 0 || len(report.Reservations) != 0 || !n.exists("10.0.0.2") {
		t.Errorf("asked %d times, got %+v, want nothing judged", len(source.times()), report.Reservations)
	}
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

// Arguments that are wrong are errors of the constructor, not of later passes.
func TestHazard44ConstructorRefuses(t *testing.T) {
	store, source := hostlocal.New(t.TempDir()), podsource.Static{other}
	some := []string{network1}
	for _, c := range []struct {
		reason   string
		store    *hostlocal.Store
		networks []string
		source   podsource.Source
		opts     Options
		want     string // in the error; empty: none
	}{
		{"valid arguments", store, some, source, Options{}, ""},
		{"no store", nil, some, source, Options{}, "no store"},
		{"no source", store, some, nil, Options{}, "no pod source"},
		{"no networks", store, nil, source, Options{}, "no network"},
		{"an empty name", store, []string{""}, source, Options{}, `""`},
		{"all networks, and one by its name", store, []string{"*", "a"}, source, Options{}, `"*" must be the only network`},
		{"a network twice", store, []string{"a", "b", "b"}, source, Options{}, "network b is named twice"},
		{"seconds written as nanoseconds", store, some, source, Options{MinAge: 300}, "MinAge is 300ns"},
		{"a nanosecond less than a second", store, some, source, Options{MinAge: time.Second - 1}, "MinAge"},
		{"a second", store, some, source, Options{MinAge: time.Second}, ""},
		{"longer than any clock", store, some, source, Options{MinAge: math.MaxInt64}, "MinAge"},
		{"StartingFor below 2 T + 10 min", store, some, source, Options{StartingFor: 14*time.Minute - 1}, "it must be from 14m0s"},
		{"of a longer T", store, some, source, Options{RuntimeRequestTimeout: 5 * time.Minute, StartingFor: 14 * time.Minute}, "StartingFor"},
		{"T in seconds", store, some, source, Options{RuntimeRequestTimeout: 120}, "RuntimeRequestTimeout is 120ns"},
		{"a time for sources in seconds", store, some, source, Options{SourceTimeout: 15}, "SourceTimeout"},
		{"a negative time for the hook", store, some, source, Options{StartupTimeout: -1}, "StartupTimeout"},
		{"an interval of more than a day", store, some, source, Options{Interval: 24*time.Hour + 1}, "Interval"},
		{"of a day", store, some, source, Options{Interval: 24 * time.Hour}, ""},
		{"a busy loop", store, some, source, Options{Interval: time.Second - 1}, "Interval"},
		{"an empty prefix", store, some, source, Options{AllowForeign: []string{"default-", ""}}, "AllowForeign"},
	} {
		r, err := New(c.store, c.networks, c.source, c.opts)
		if valid := c.want == ""; (err == nil) != valid || (r != nil) != valid || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: got error %v, want one that says %q", c.reason, err, c.want)
		}
	}
	_, err := New(nil, nil, nil, Options{MinAge: -1, Interval: -1})
	for _, want := range []string{"store", "source", "network", "MinAge", "Interval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want every error in it, also %s", err, want)
		}
	}
}

// The zero Options are what the documentation says.
func TestDefaults(t *testing.T) {
	opts, err := Options{}.WithDefaults()
	must(t, err)
	if opts.RuntimeRequestTimeout != 2*time.Minute || opts.MinAge != 7*time.Minute || opts.StartingFor != 14*time.Minute ||
		opts.SourceTimeout != 15*time.Second || opts.StartupTimeout != 30*time.Second || opts.Interval != 10*time.Minute {
		t.Errorf("got %+v", opts)
	}
	opts, err = Options{RuntimeRequestTimeout: 4 * time.Minute}.WithDefaults()
	if err != nil || opts.MinAge != 11*time.Minute || opts.StartingFor != 18*time.Minute {
		t.Errorf("with a T of 4 minutes: %+v, error %v", opts, err)
	}
	// New does not sort the caller's slice.
	networks := []string{"b", "a"}
	if _, err := New(hostlocal.New(""), networks, podsource.Static{}, Options{}); err != nil || networks[0] != "b" {
		t.Errorf("New left the caller's networks as %v (error %v)", networks, err)
	}
}
