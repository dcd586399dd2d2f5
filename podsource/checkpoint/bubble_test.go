// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
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
		n := newNode(t)
		n.reserve("10.0.0.2", "old")
		n.reserve("10.0.0.3", "leaked")
		n.Reserve(network1, "10.0.0.4", "reserved", time.Minute)
		n.Reserve(network1, "10.0.0.5", "leaked-a-minute-ago", time.Minute)
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
		n.Reserve(network1, "10.0.0.6", "about-to", 0)
		time.Sleep(DefaultLag)
		pass()
		check("older than the minimum age", []string{"10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"}, []string{"10.0.0.2"})

		listed = []string{"old", "reserved", "about-to"}
		fill()
		pass()
		check("the runtime lists them", []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"}, []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"})

		time.Sleep(DefaultLag)
		n.Reserve(network1, "10.0.0.7", "leaked-since", DefaultLag+2*time.Minute)
		fill()
		pass()
		check("in the end", []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"}, []string{"10.0.0.2", "10.0.0.4", "10.0.0.6"})
		if err := c.Backfill(t.Context(), runtime, of); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a gap is left: %v", err)
		}
	})
}
