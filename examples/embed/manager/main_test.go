// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A real manager with leader election runs a Reconciler and a plain Runnable for an hour of
// synctest's time.
func TestRunsOnEveryNode(t *testing.T) {
	for _, row := range []struct {
		reason string
		other  bool // another candidate leads
		holder string
		plain  bool // whether the plain Runnable runs
	}{
		{"not the leader: the Reconciler runs all the same", true, "another-node", false},
		{"the leader: what waits for the lead runs, too", false, self, true},
	} {
		t.Run(row.reason, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			synctest.Test(t, func(t *testing.T) { hour(t, row.other, row.holder, row.plain) })
			goleak.VerifyNone(t, before)
		})
	}
}

// hour runs a manager for an hour and checks what it did. synctest checks that no goroutine is
// left.
func hour(t *testing.T, other bool, holder string, plain bool) {
	log.SetLogger(logr.Discard())
	gctest.Uptime(t, 24*time.Hour)
	dir := t.TempDir()
	reserve(t, dir, "10.244.1.2", "live")
	reserve(t, dir, "10.244.1.3", "leaked")
	var passes []string
	opts := gc.Options{AllowForeign: []string{"*"}, OnReport: func(report gc.Report, err error) {
		passes = append(passes, fmt.Sprint("released ", report.Counts()[gc.Released], ", ", err))
	}}

	election := newLock(other)
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{ // never called
		LeaderElection: true, LeaderElectionResourceLockInterface: election,
		Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := collect(mgr, dir, "podnet", podsource.Static{{ContainerIDs: []string{"live"}}}, opts); err != nil {
		t.Fatal(err)
	}
	ran := false
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		ran = true
		<-ctx.Done()
		return nil
	})); err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	time.Sleep(25 * time.Minute)
	synctest.Wait()
	reserve(t, dir, "10.244.1.4", "leaked-meanwhile")
	time.Sleep(35 * time.Minute)
	synctest.Wait()

	if len(passes) < 4 {
		t.Errorf("%d passes in an hour, want those at the start and each ten minutes", len(passes))
	} else if diff := cmp.Diff([]string{"released 1, <nil>", "released 0, <nil>", "released 0, <nil>", "released 1, <nil>"}, passes[:4]); diff != "" {
		t.Errorf("passes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.244.1.2"}, addresses(t, dir)); diff != "" {
		t.Errorf("reservations after an hour (-want +got):\n%s", diff)
	}
	if ran != plain {
		t.Errorf("the plain Runnable ran: %v, want %v", ran, plain)
	}
	if calls, who := election.seen(); calls < 100 || who != holder {
		t.Errorf("after %d calls for the lock it is held by %q, want it by %q after hundreds", calls, who, holder)
	}

	done := len(passes)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the manager was stopped, and returned: %v", err)
	}
	synctest.Wait()
	if len(passes) != done {
		t.Errorf("%d passes after the stop", len(passes)-done)
	}
}

// reserve writes a reservation of an hour ago.
func reserve(t *testing.T, dataDir, ip, containerID string) {
	t.Helper()
	file := filepath.Join(dataDir, "podnet", ip)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(containerID+"\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
}

// addresses returns the reserved addresses.
func addresses(t *testing.T, dataDir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dataDir, "podnet", "10.*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	slices.Sort(files)
	return files
}

// The output of a failed command is ignored.
func TestSandboxes(t *testing.T) {
	abc, def := strings.Repeat("abc0", 16), strings.Repeat("def0", 16)
	for _, row := range []struct {
		reason  string
		command []string
		want    []podsource.Pod
		bad     bool
	}{
		{"two sandboxes", []string{"echo", abc, def}, []podsource.Pod{{ContainerIDs: []string{abc}}, {ContainerIDs: []string{def}}}, false},
		{"a list that breaks off", []string{"sh", "-c", "echo abc; exit 1"}, nil, true},
		{"no such command", []string{"/no/such/command"}, nil, true},
	} {
		got, err := sandboxes(row.command).Pods(t.Context())
		if diff := cmp.Diff(row.want, got.Pods); diff != "" || (err != nil) != row.bad {
			t.Errorf("%s: %v (-want +got):\n%s", row.reason, err, diff)
		}
	}
}

func TestUsage(t *testing.T) {
	if err := run(t.Context(), []string{"podnet"}); err == nil || !strings.HasPrefix(err.Error(), "usage:") {
		t.Errorf("without a command: %v", err)
	}
}
