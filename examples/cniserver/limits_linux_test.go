// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A pass, a GC and a start whose time is over do not end a take-over.
func TestTakeOverDoesNotEndAfterATimeLimit(t *testing.T) {
	n := newNode(t)
	s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
	n.reserve("one", "10.9.1.7", "late")
	cnitest.DateBack(t, since, gc.DefaultMinAge)
	ctx := endedContext{t.Context()}
	for _, row := range []struct {
		by   string
		call func() error
	}{
		{"a pass", func() error { _, err := s.takeOver.Pods(ctx); return err }},
		{"a GC", func() error { return s.release(ctx, podsource.Static{}, "one") }},
		{"a start", func() error { return s.start(ctx, nil) }},
	} {
		if err := row.call(); !errors.Is(err, context.Canceled) || !cnitest.Exists(since) || len(s.record.Entries()) > 0 {
			t.Errorf("%s: %v; it has ended: %t; recorded: %v", row.by, err, !cnitest.Exists(since), s.record.Entries())
		}
	}
}

// endsAt has ended when it is asked for the time that is left, and only then.
type endsAt struct {
	context.Context
	left *int
}

func (e endsAt) Err() error {
	if *e.left--; *e.left == 0 {
		return context.Canceled
	}
	return nil
}

// There is no first record without each list of the reservations.
func TestFirstRecordNeedsEachList(t *testing.T) {
	n := newNode(t)
	s, err := n.serveOptions().newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.record.Close() })
	first := func(ctx context.Context) error { return s.firstRecord(ctx, nil) }
	for _, row := range []struct {
		reason, network string // of a reservation, whose reading asks the context once
		ends            int
		call            func(context.Context) error
	}{
		{"the list that shows whether there are reservations", "one", 1, first},
		{"the list of the attachments", "three", 2, first},
		{"... with a source", "one", 1, func(ctx context.Context) error {
			return s.recordExisting(ctx, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				return podsource.Answer{Authoritative: true}, nil
			}))
		}},
	} {
		file := cnitest.Reserve(t, n.dataDir(), row.network, "10.9.1.2", "a", time.Hour)
		if err := row.call(endsAt{t.Context(), &row.ends}); !errors.Is(err, context.Canceled) || cnitest.Exists(n.recordFile()) {
			t.Fatalf("%s: %v; there is a record: %t", row.reason, err, cnitest.Exists(n.recordFile()))
		}
		if err := syscall.Unlink(file); err != nil {
			t.Fatal(err)
		}
	}
}

// The context of a request ends with the request.
func TestContextEndsWithTheRequest(t *testing.T) {
	var kept context.Context
	err := (&server{timeout: time.Hour}).serialize(t.Context(), &request{Command: "STATUS"}, func(ctx context.Context) error {
		kept = ctx
		return ctx.Err()
	})
	if err != nil || !errors.Is(kept.Err(), context.Canceled) {
		t.Errorf("%v; after the request: %v, want %v", err, kept.Err(), context.Canceled)
	}
}

// The command serve ends with its context.
func TestServeCommandEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	cmd := serveCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"--network", "one", "--state-dir", filepath.Join(dir, "state"), "--data-dir", dir, "--socket", "/dev/null/s"})
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// The loop ends with the server.
func TestLoopEndsWithTheServer(t *testing.T) {
	n := newNode(t)
	o := n.serveOptions()
	o.socket = n.socket()
	loops := func() bool {
		stacks := make([]byte, 1<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "gc.(*Reconciler).Start(")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- o.run(ctx) }()
	cnitest.Until(t, "the loop begins and the server listens", func() bool { return loops() && cnitest.Exists(n.socket()) })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	cnitest.Until(t, "the loop has ended", func() bool { return !loops() })
}

// An ADD that fails for another reason than a full network triggers no pass.
func TestOtherErrorsTriggerNoPass(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	r := n.request("ADD", "none")
	r.Path = n.dir // where the delegate is not found
	synctest.Test(t, func(t *testing.T) {
		passes := 0
		opts := gc.Options{OnReport: func(gc.Report, error) { passes++ }}
		loop, err := gc.New(s.store, s.networks, podsource.AllowEmpty(podsource.Static{}), opts)
		if err != nil {
			t.Fatal(err)
		}
		s.loop = loop
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = loop.Start(ctx) }() // the error is always nil
		synctest.Wait()
		if _, err := s.add(t.Context(), r, n.delegation()); err == nil || passes != 1 {
			t.Fatalf("%v after %d passes", err, passes)
		}
		time.Sleep(time.Minute) // of the bubble: longer than the pause after Trigger, shorter than the interval
		if passes != 1 {
			t.Errorf("%d passes", passes)
		}
	})
}
