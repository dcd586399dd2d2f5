// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// The clock is set between two starts, or while the agent runs, and the agent starts again and
// again. A version without a record has reserved an address by the old clock, and its container is
// not listed yet.
//
// Guard: [record.gapUntil] moves no end of a gap backwards, and [record.Stepped] outlives the agent.
func TestHazard52ClockIsSetAndTheAgentStartsAgain(t *testing.T) {
	for _, row := range []struct {
		reason   string
		step     time.Duration // of the clock
		reserved time.Duration // ago, by the clock of now
		runs     bool          // the agent runs during the step
		backfill bool          // another source is asked by the last start
	}{
		{"back", -8 * time.Hour, -6 * time.Hour, false, false},
		{"back while the agent runs", -8 * time.Hour, -6 * time.Hour, true, false},
		{"forward, and a source does not list it yet", 8 * time.Hour, 8*time.Hour + 2*time.Minute, false, true},
	} {
		for starts := 1; starts <= 3; starts++ {
			n := newNode(t)
			n.Reserve(network1, "10.0.0.3", "x", row.reserved)
			path := filepath.Join(t.TempDir(), "attachments")
			if row.runs { // the gap of its start goes on by the old clock
				c := begun(t, path, served)
				setGap(c, gap{From: time.Now(), To: time.Now().Add(DefaultLag - row.step)}, time.Time{})
				setClock(c, row.step)
				if err := errors.Join(c.Add(entry("a", "10.0.0.2")), c.Close()); err != nil {
					t.Fatal(err)
				}
			} else {
				ago := 3 * time.Minute
				r := record{Written: time.Now().Add(-ago - row.step), SinceBoot: boottime.Since() - ago, Gap: gap{at(1), at(1), at(0)}, Entries: []Entry{}}
				content, err := encode(r)
				if err != nil {
					t.Fatal(err)
				}
				write(t, path, string(content))
			}
			for range starts - 1 {
				c := opened(t, path, served)
				if err := errors.Join(c.Add(entry("b", "10.0.0.4")), c.Close()); err != nil {
					t.Fatal(err)
				}
			}
			c := opened(t, path, served)
			if row.backfill {
				if err := c.Backfill(t.Context(), answers(runtimeOf("other")), noAttachments); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.hook(c); err != nil || !slices.Equal(n.left(), []string{"10.0.0.3"}) {
				t.Errorf("%s, %d starts: left are %v, error %v, gaps %v", row.reason, starts, n.left(), err, c.state.Load().gap.answer())
			}
		}
	}
}

// A writer whose lock file was removed does not answer: another writer may have recorded a live container.
//
// Guard: [Checkpoint.Pods] checks the lock.
func TestHazard96AWriterWithoutItsLockDoesNotAnswer(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.3", "x")
	path := filepath.Join(t.TempDir(), "attachments")
	first, err := Open(path, noLag)
	if err == nil {
		err = errors.Join(first.Backfill(t.Context(), noPods, nil), first.Backfill(t.Context(), noPods, nil), os.Remove(path+".lock"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := opened(t, path, noLag).Add(entry("x", "10.0.0.3")); err != nil {
		t.Fatal(err)
	}
	if err := n.pass(first); !errors.Is(err, ErrLocked) || !slices.Equal(n.left(), []string{"10.0.0.3"}) {
		t.Errorf("left are %v, error %v", n.left(), err)
	}
	if err := first.Close(); !errors.Is(err, ErrLocked) {
		t.Errorf("Close: %v", err)
	}
}

// A container of nerdctl is older than all that a second source, of any container, was told of.
//
// Guard: [Checkpoint.Backfill] closes the gap of containers that are no sandboxes up to where the list of such a source begins.
func TestHazard49TwoSourcesOfOtherKinds(t *testing.T) {
	n := newNode(t)
	n.allow = nil
	n.Reserve(network1, "10.0.0.4", "default-"+strings.Repeat("ed", 32), 30*time.Minute)
	c := opened(t, filepath.Join(t.TempDir(), "attachments"), served)
	cri, store := runtimeOf(strings.Repeat("5a", 32)), runtimeOf("other")
	cri.Names = podsource.SandboxContainers
	store.Gaps = []podsource.Gap{{From: time.Now().Add(-time.Hour)}}
	for _, source := range []podsource.Answer{cri, store} {
		if err := c.Backfill(t.Context(), answers(source), noAttachments); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.hook(c); err != nil || len(n.left()) != 1 {
		t.Errorf("left are %v, error %v, gaps %v", n.left(), err, c.state.Load().gap.answer())
	}
}
