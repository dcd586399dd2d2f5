// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An agent starts for the first time while ADDs of another CNI server are in flight:
// one has reserved, one will, and the runtime lists neither yet. Both are kept, and
// recorded later.
//
// Guard: [backfill.before] leaves a gap of [Options.Lag] before a
// [Checkpoint.Backfill], and [narrowed] one after it.
func TestHazard52FirstStartWithADDsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, t.TempDir())
		n.reserve("10.0.0.2", "old")
		n.reserve("10.0.0.3", "leaked")
		n.reserve("10.0.0.4", "reserved")
		n.setAge("10.0.0.4", time.Minute)
		n.reserve("10.0.0.5", "leaked-a-minute-ago")
		n.setAge("10.0.0.5", time.Minute)
		ips := map[string]string{"old": "10.0.0.2", "reserved": "10.0.0.4", "about-to": "10.0.0.6"}
		listed := []string{"old"}
		runtime := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return runtimeOf(listed...), nil })
		of := func(p podsource.Pod) ([]Entry, error) {
			id := p.ContainerIDs[0]
			return []Entry{entry(id, ips[id])}, nil
		}
		c := opened(t, filepath.Join(t.TempDir(), "attachments"), served)
		r := n.reconciler(c, gc.Options{})
		check := func(when string, left, inRecord []string) {
			t.Helper()
			if diff := cmp.Diff(left, n.left()) + cmp.Diff(inRecord, recorded(c)); diff != "" {
				t.Errorf("%s: reserved and recorded (-want +got):\n%s", when, diff)
			}
		}
		fill := func() {
			t.Helper()
			if err := c.Backfill(t.Context(), runtime, of); err != nil {
				t.Fatal(err)
			}
		}
		pass := func() {
			t.Helper()
			if _, err := r.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		fill()
		if _, err := r.AtStartup(t.Context(), gc.NoADDInFlight); err != nil {
			t.Fatal(err)
		}
		check("after AtStartup", []string{"10.0.0.2", "10.0.0.4", "10.0.0.5"}, []string{"10.0.0.2"})

		time.Sleep(3 * time.Minute)
		n.reserve("10.0.0.6", "about-to")
		n.setAge("10.0.0.6", 0)
		time.Sleep(DefaultLag)
		pass()
		check("older than the minimum age", []string{"10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"}, []string{"10.0.0.2"})

		listed = []string{"old", "reserved", "about-to"}
		fill()
		pass()
		check("the runtime lists them", []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"}, []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"})

		time.Sleep(DefaultLag)
		n.reserve("10.0.0.7", "leaked-since")
		n.setAge("10.0.0.7", DefaultLag+2*time.Minute)
		fill()
		pass()
		check("in the end", []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"}, []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"})
		if err := c.Backfill(t.Context(), runtime, of); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a gap is left: %v", err)
		}
	})
}

// TestTimeout: a call that hangs returns after the timeout, and the next one does not
// begin before it ends.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &responder{timeout: time.Second, busy: make(chan struct{}, 1)}
		hang := make(chan struct{})
		ask := func(ctx context.Context, of func() error) error {
			var asked context.Context
			_, _, err := withTimeout(ctx, q, func(ctx context.Context) (int, int, error) { asked = ctx; return 0, 0, of() })
			synctest.Wait()
			if asked != nil && asked.Err() == nil {
				t.Error("the context has not ended after the call returned")
			}
			return err
		}
		for _, says := range []string{"longer than 1s", "an earlier call"} {
			start := time.Now()
			err := ask(t.Context(), func() error { <-hang; return nil })
			if took := time.Since(start); took != time.Second || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
				t.Errorf("after %v: %v, want an error with %q", took, err, says)
			}
		}
		close(hang)
		synctest.Wait()
		broken := errors.New("broken")
		if err := ask(t.Context(), func() error { return broken }); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
		var none map[string]int
		if err := ask(t.Context(), func() error { none["x"]++; return nil }); err == nil || !strings.Contains(err.Error(), "panic") {
			t.Errorf("a panic: got %v", err)
		}
		if err := ask(t.Context(), func() error { return nil }); err != nil {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // select chooses at random
			if err := ask(ended, func() error { t.Error("asked"); return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		}
	})
}
