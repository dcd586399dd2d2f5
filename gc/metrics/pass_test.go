// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package metrics

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Real passes over one network, in fake time, so that every value is known: the disk takes no
// time, and the source takes as long as it sleeps.
func TestRealPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gctest.Uptime(t, 24*time.Hour)
		dir := t.TempDir()
		type answer func() ([]podsource.Pod, error)
		var next atomic.Pointer[answer] // a call that timed out goes on during the next one
		c := New()
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) { return (*next.Load())() })
		r, err := gc.New(hostlocal.New(dir), []string{"podnet"}, source, gc.Options{AllowForeign: []string{"*"}, OnReport: c.OnReport})
		if err != nil {
			t.Fatal(err)
		}

		const owner = "\r\neth0"
		reserve(t, dir, "10.0.0.2", "live"+owner, 3*time.Hour)
		reserve(t, dir, "10.0.0.3", "addressed"+owner, 3*time.Hour)
		reserve(t, dir, "10.0.0.4", "leaked"+owner, time.Hour)
		reserve(t, dir, "10.0.0.5", "", time.Hour)
		reserve(t, dir, "10.0.0.6", "new"+owner, time.Minute)
		reserve(t, dir, "10.0.0.7", "maybe"+owner, 20*time.Minute)
		reserve(t, dir, "10.0.0.8", "not an owner\nat\nall", 2*time.Hour)
		reserve(t, dir, "10.0.0.9", "other"+owner, 3*time.Hour)
		pods := []podsource.Pod{
			{ContainerIDs: []string{"live"}},
			{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}},
			{ContainerIDs: []string{"another"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}},
			{StartedAt: time.Now().Add(-30 * time.Minute)},
		}

		errDown := errors.New("server is down")
		network := filepath.Join(dir, "podnet")
		lock := filepath.Join(network, "lock")
		for _, step := range []struct {
			reason string
			before func() error // done a minute after the step before
			takes  time.Duration
			pods   []podsource.Pod
			err    error
			want   string // of passes and the oldest leak
		}{
			{
				reason: "releases two, keeps the malformed one",
				takes:  2 * time.Second, pods: pods,
				want: `oldest_kept_leak_age_seconds{network="podnet"} 7260
passes_total{result="ok"} 1
`,
			}, {
				reason: "the source fails",
				takes:  10 * time.Second, err: errDown,
				want: `oldest_kept_leak_age_seconds{network="podnet"} 7260
passes_total{result="ok"} 1
passes_total{result="refused"} 1
`,
			}, {
				reason: "the source does not answer",
				takes:  30 * time.Second, pods: pods,
				want: `oldest_kept_leak_age_seconds{network="podnet"} 7260
passes_total{result="ok"} 1
passes_total{result="refused"} 1
passes_total{result="source-timeout"} 1
`,
			}, {
				reason: "the source reports no pod",
				want: `oldest_kept_leak_age_seconds{network="podnet"} 7260
passes_total{result="no-pods"} 1
passes_total{result="ok"} 1
passes_total{result="refused"} 1
passes_total{result="source-timeout"} 1
`,
			}, {
				reason: "the malformed one was removed: that of the starting pod is the oldest",
				before: func() error { return os.Remove(filepath.Join(network, "10.0.0.8")) },
				pods:   pods,
				want: `oldest_kept_leak_age_seconds{network="podnet"} 1527
passes_total{result="no-pods"} 1
passes_total{result="ok"} 2
passes_total{result="refused"} 1
passes_total{result="source-timeout"} 1
`,
			}, {
				reason: "the starting pod is gone, and the lock can't be taken: its leak is kept",
				before: func() error { return errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)) },
				pods:   pods[:3],
				want: `oldest_kept_leak_age_seconds{network="podnet"} 1587
passes_total{result="locked"} 1
passes_total{result="no-pods"} 1
passes_total{result="ok"} 2
passes_total{result="refused"} 1
passes_total{result="source-timeout"} 1
`,
			}, {
				reason: "the lock can be taken again, and all leaks are old enough",
				before: func() error { return os.Remove(lock) },
				takes:  500 * time.Millisecond, pods: pods[:3],
				want: `oldest_kept_leak_age_seconds{network="podnet"} 0
passes_total{result="locked"} 1
passes_total{result="no-pods"} 1
passes_total{result="ok"} 3
passes_total{result="refused"} 1
passes_total{result="source-timeout"} 1
`,
			},
		} {
			time.Sleep(time.Minute)
			if step.before != nil {
				if err := step.before(); err != nil {
					t.Fatal(err)
				}
			}
			reply := answer(func() ([]podsource.Pod, error) {
				time.Sleep(step.takes)
				return step.pods, step.err
			})
			next.Store(&reply)
			report, err := r.Reconcile(t.Context())
			got := ""
			for line := range strings.Lines(shown(t, c, "passes_total", "oldest_kept_leak_age_seconds")) {
				if strings.HasPrefix(line, "oldest") || !strings.HasSuffix(line, " 0\n") {
					got += line
				}
			}
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s\n%v, %v", step.reason, diff, report.Counts(), err)
			}
		}
		compare(t, c, "passes.txt")
	})
}

// The leaks of a dry run still exist.
func TestDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gctest.Uptime(t, 24*time.Hour)
		dir := t.TempDir()
		reserve(t, dir, "10.0.0.4", "leaked\r\neth0", time.Hour)
		c := New()
		source := podsource.Static{{ContainerIDs: []string{"live"}}}
		r, err := gc.New(hostlocal.New(dir), []string{"podnet"}, source, gc.Options{
			AllowForeign: []string{"*"}, DryRun: true, OnReport: c.OnReport,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := "oldest_kept_leak_age_seconds{network=\"podnet\"} 3600\nreleased_total{network=\"podnet\"} 0\n"
		if diff := cmp.Diff(want, shown(t, c, "oldest_kept_leak_age_seconds", "released_total")); diff != "" {
			t.Errorf("after a dry run (-want +got):\n%s", diff)
		}
	})
}

// A metric shows that a network's name is wrong, or that the data directory is not mounted.
func TestHazard63MissingDirectories(t *testing.T) {
	dir := t.TempDir()
	reserve(t, dir, "10.0.0.4", "live\r\neth0", time.Hour)
	for _, row := range []struct {
		reason   string
		dataDir  string
		networks []string
		want     string
	}{
		{"the directory exists", dir, []string{"podnet"}, "missing_networks 0\n"},
		{"one of two names is wrong", dir, []string{"podnet", "prodnet"}, "missing_networks 1\n"},
		{"the data directory is missing", filepath.Join(dir, "unmounted"), []string{"podnet", "storage"}, "missing_networks 2\n"},
	} {
		c := New()
		source := podsource.Static{{ContainerIDs: []string{"live"}}}
		r, err := gc.New(hostlocal.New(row.dataDir), row.networks, source, gc.Options{OnReport: c.OnReport})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context()); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		if diff := cmp.Diff(row.want, shown(t, c, "missing_networks")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}
