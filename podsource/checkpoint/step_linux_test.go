// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// The clock is set forward while the runtime pulls a pause image: a reservation that is
// minutes old looks an hour old. The runtime does not list the container yet, so it is
// not recorded.
//
// Guard: [backfill.before] is earlier by [backfill.slack].
func TestHazard52ClockWasSet(t *testing.T) {
	age := min(5*time.Minute, boottime.Since()/2) // of the record; the machine may have just booted
	for _, row := range []struct {
		reason string
		set    func(*Checkpoint)
		since  time.Duration // the age of the record, by the wall clock
	}{
		{"before the record was opened", func(*Checkpoint) {}, age + time.Hour},
		{"while it was open", func(c *Checkpoint) { setClock(c, time.Hour) }, age},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t, t.TempDir())
			n.reserve("10.0.0.2", "pulling")
			n.setAge("10.0.0.2", 62*time.Minute)
			n.reserve("10.0.0.3", "leaked")
			n.setAge("10.0.0.3", 90*time.Minute)
			path := filepath.Join(t.TempDir(), "attachments")
			content, err := encoded(&record{Written: time.Now().Add(-row.since), SinceBoot: boottime.Since() - age})
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, string(content))
			c := opened(t, path, served)
			s := *c.state.Load()
			s.gaps = []podsource.Gap{{To: s.gaps[0].To}}
			c.state.Store(&s)
			row.set(c)
			runtime := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return runtimeOf("other"), nil })
			if err := c.Backfill(t.Context(), runtime, func(podsource.Pod) ([]Entry, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			if err := n.hook(c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"10.0.0.2"}, n.left()); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			s = *c.state.Load()
			s.steps.last = s.steps.last.Add(-DefaultLag - 1)
			c.state.Store(&s)
			if err := c.Backfill(t.Context(), runtime, func(podsource.Pod) ([]Entry, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			if from := c.state.Load().gaps[0].From; time.Since(from) > DefaultLag+time.Minute {
				t.Errorf("the step was longer ago than the lag, and the gap begins at %v", from)
			}
		})
	}
}

// setClock simulates that the wall clock was set forward since the record was opened.
func setClock(c *Checkpoint, by time.Duration) {
	s := *c.state.Load()
	s.at.wall = s.at.wall.Add(-by)
	s.gaps = slices.Clone(s.gaps)
	for i := range s.gaps {
		g := &s.gaps[i]
		if g.To = g.To.Add(-by); !g.From.IsZero() {
			g.From = g.From.Add(-by)
		}
	}
	c.state.Store(&s)
}

// The clock is set while the record is open. Later reservations of another CNI server
// have timestamps of the new clock.
//
// Guard: [Checkpoint.Pods] and [Checkpoint.commit] call [state.gapsAt].
func TestHazard52ClockIsSetInAGap(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		path := filepath.Join(t.TempDir(), "attachments")
		c := begun(t, path, served)
		setClock(c, by)
		gaps := c.state.Load().gaps
		want := podsource.Gap{From: gaps[0].From, To: gaps[0].To}
		if by > 0 {
			want.To = want.To.Add(by)
		} else {
			want.From = want.From.Add(by)
		}
		near := func(when string, gaps []podsource.Gap) {
			t.Helper()
			if len(gaps) != 1 || gaps[0].From.Sub(want.From).Abs() > time.Minute || gaps[0].To.Sub(want.To).Abs() > time.Minute {
				t.Errorf("set by %v, %s: gaps %v, want %v", by, when, gaps, want)
			}
		}
		a, err := c.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		near("Pods", a.Gaps)
		if err := c.Add(entry("a", "10.0.0.2")); err != nil {
			t.Fatal(err)
		}
		r, err := decode(read(t, path))
		if err != nil {
			t.Fatal(err)
		}
		near("written", r.Gaps)
	}
}

// TestHazard52BackfillKeepsSteps: the next Backfill knows of a step of the clock that the last
// one saw.
//
// Guard: [Checkpoint.Backfill] stores the steps with the reading of the clocks.
func TestHazard52BackfillKeepsSteps(t *testing.T) {
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, entry("a", "10.0.0.2"))
	s := *c.state.Load()
	s.gaps = []podsource.Gap{{To: time.Now()}}
	c.state.Store(&s)
	setClock(c, time.Hour)
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return runtimeOf("other"), nil })
	if err := c.Backfill(t.Context(), source, func(podsource.Pod) ([]Entry, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if got := c.state.Load().steps.sum; (got - time.Hour).Abs() > time.Minute {
		t.Errorf("got %v, want an hour", got)
	}
}
