// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
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
	dir := gctest.NewDir(t)
	dir.Reserve("podnet", "10.244.1.2", gctest.ContainerID("live"), time.Hour)
	dir.Reserve("podnet", "10.244.1.3", gctest.ContainerID("leaked"), time.Hour)
	var passes []string
	var last gc.Report
	opts := gc.Options{OnReport: func(report gc.Report, err error) {
		last, passes = report, append(passes, fmt.Sprint("released ", report.Counts()[gc.Released], ", ", err))
	}}

	election := newLock(other)
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{ // never called
		LeaderElection: true, LeaderElectionResourceLockInterface: election,
		Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	live := podsource.Static{{ContainerIDs: []string{gctest.ContainerID("live")}}}
	if err := add(mgr, dir.Store, []string{"podnet"}, live, opts); err != nil {
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
	dir.Reserve("podnet", "10.244.1.4", gctest.ContainerID("leaked meanwhile"), time.Hour)
	time.Sleep(35 * time.Minute)
	synctest.Wait()

	if len(passes) < 4 {
		t.Errorf("%d passes in an hour, want those at the start and each ten minutes", len(passes))
	} else if diff := cmp.Diff([]string{"released 1, <nil>", "released 0, <nil>", "released 0, <nil>", "released 1, <nil>"}, passes[:4]); diff != "" {
		t.Errorf("passes (-want +got):\n%s", diff)
	}
	gctest.Check(t, last, "10.244.1.2 in-use")
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
