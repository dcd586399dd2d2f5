// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// runtimeOf is a runtime that lists these containers, minutes after their ADD.
func runtimeOf(containers ...string) podsource.Answer {
	a := podsource.Answer{Source: "runtime", Names: []podsource.Names{{Form: podsource.AnyForm, Lag: podsource.RuntimeLag}}}
	for _, id := range containers {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{id}})
	}
	return a
}

// A version without a record ran for an hour, and the record is read again: it says
// nothing of what was reserved meanwhile. Beside the runtime, or once it has asked
// that, what leaked then goes, too.
//
// Guard: [record.gapsSince] begins a gap with [record.Written], which each
// [Checkpoint.commit] and the [Checkpoint.Close] set; [podsource.Answer.Gaps] has it.
func TestHazard51Rollback(t *testing.T) {
	runtime := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return runtimeOf("a", "meanwhile"), nil })
	attachments := func(p podsource.Pod) (of []Entry, err error) {
		ips := map[string]string{"a": "10.0.0.2", "meanwhile": "10.0.0.3"}
		for _, id := range p.ContainerIDs {
			of = append(of, entry(id, ips[id]))
		}
		return of, nil
	}
	all := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}
	for _, row := range []struct {
		reason string
		source func(t *testing.T, c *Checkpoint) podsource.Source // what the hook asks
		left   []string
	}{
		{"the record alone", func(_ *testing.T, c *Checkpoint) podsource.Source { return c }, all},
		{"read by somebody else", func(t *testing.T, c *Checkpoint) podsource.Source { return reader(t, c.path, served) }, all},
		{"the record and the runtime", func(_ *testing.T, c *Checkpoint) podsource.Source { return podsource.Union(runtime, c) }, all[:2]},
		{"the record, which has asked the runtime", func(t *testing.T, c *Checkpoint) podsource.Source {
			if err := c.Backfill(t.Context(), runtime, attachments); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(all[:2], recorded(c)); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			return c
		}, all[:2]},
		{"... and was opened once more since", func(t *testing.T, c *Checkpoint) podsource.Source {
			if err := errors.Join(c.Backfill(t.Context(), runtime, attachments), c.Close()); err != nil {
				t.Fatal(err)
			}
			return opened(t, c.path, served)
		}, all[:2]},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t, t.TempDir())
			n.reserve("10.0.0.2", "a")
			n.reserve("10.0.0.3", "meanwhile")
			n.reserve("10.0.0.4", "leaked-meanwhile")
			n.reserve("10.0.0.5", "leaked-before")
			n.setAge("10.0.0.2", 3*time.Hour)
			n.setAge("10.0.0.5", 3*time.Hour)
			content, err := encoded(&record{Written: time.Now().Add(-2 * time.Hour), Entries: []Entry{entry("a", "10.0.0.2")}})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "attachments")
			write(t, path, string(content))
			if err := n.hook(row.source(t, opened(t, path, served))); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(row.left, n.left()); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// Whoever holds the record says until when: with each change, and when it closes it.
// What comes then is kept, also from the writer's successor, and by the gaps that
// are on the disk from its successor's.
//
// Guard: [Checkpoint.Close] writes, [record.Gaps] are kept by [Checkpoint.commit].
func TestHazard51UntilWhen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, noLag)
	if err := c.Add(entry("a", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	kept := time.Now()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	closed := time.Now()
	inGap := func(source podsource.Source, at time.Time) bool {
		answer, err := source.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(answer.Gaps, func(g podsource.Gap) bool {
			return !at.Before(g.From) && (g.To.IsZero() || !at.After(g.To))
		})
	}
	for range 3 {
		c := opened(t, path, noLag)
		since := time.Now()
		if inGap(c, kept) || !inGap(c, closed) || inGap(c, since.Add(time.Hour)) {
			t.Errorf("gaps %v; it was closed between %v and %v, and opened before %v", c.state.Load().gaps, kept, closed, since)
		}
		if err := c.Add(entry("b", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		r := reader(t, path, served)
		if inGap(r, since.Add(-time.Hour)) || !inGap(r, closed) || !inGap(r, time.Now()) {
			t.Errorf("a reader's gaps are wrong; it was closed between %v and %v, and opened before %v", kept, closed, since)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGapsSince: what a record can't speak for, by the clocks when it is opened.
func TestGapsSince(t *testing.T) {
	const hour = time.Hour
	at := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	older, old := podsource.Gap{From: ago(12 * hour), To: ago(11 * hour)}, podsource.Gap{From: ago(9 * hour), To: ago(8 * hour)}
	to := at.Add(DefaultLag)
	for _, row := range []struct {
		reason    string
		written   time.Time
		sinceBoot time.Duration
		sameBoot  bool
		boot      time.Duration // since, now
		to        time.Time
		want      []podsource.Gap
	}{
		{"since it was written, beside those that it knows of", ago(hour), 23 * hour, true, 24 * hour, to,
			[]podsource.Gap{older, old, {From: ago(hour), To: to}}},
		{"without end", ago(hour), 23 * hour, true, 24 * hour, time.Time{}, []podsource.Gap{older, old, {From: ago(hour)}}},
		{"nobody knows since when the node is up", ago(hour), 0, true, 0, to, []podsource.Gap{older, old, {From: ago(hour), To: to}}},
		{"... or did when it was written", ago(hour), 0, true, 24 * hour, to, []podsource.Gap{older, old, {From: ago(hour), To: to}}},
		{"the clock was set back meanwhile, as is plain", ago(-hour), 23 * hour, true, 0, to, []podsource.Gap{{To: to}}},
		{"the clock was off by as little as two readings may be", ago(hour - clockTolerance), 23 * hour, true, 24 * hour, to,
			[]podsource.Gap{older, old, {From: ago(hour - clockTolerance), To: to}}},
		{"the clock was set forward meanwhile: by a stamp nobody knows what is older", ago(hour), 24*hour - time.Minute, true, 24 * hour, to,
			[]podsource.Gap{{To: to}}},
		{"... and back: stamps are as late as it was", ago(-hour), 24*hour - time.Minute, true, 24 * hour, to,
			[]podsource.Gap{{To: to.Add(hour + time.Minute)}}},
		{"... where no end is given", ago(-hour), 24*hour - time.Minute, true, 24 * hour, time.Time{}, []podsource.Gap{{}}},
		{"it is of an earlier boot: since this one", ago(48 * hour), hour, false, 2 * hour, to,
			[]podsource.Gap{{From: ago(2*hour + clockTolerance), To: to}}},
		{"... of which nobody knew since when it was up", ago(48 * hour), 0, false, 2 * hour, to,
			[]podsource.Gap{{From: ago(2*hour + clockTolerance), To: to}}},
		{"... and nobody knows since when the node is up", ago(48 * hour), hour, false, 0, to,
			[]podsource.Gap{{From: ago(48 * hour), To: to}}},
	} {
		r := &record{Written: row.written, SinceBoot: row.sinceBoot, Gaps: []podsource.Gap{older, old}}
		if diff := cmp.Diff(row.want, r.gapsSince(row.sameBoot, bootReading{at, row.boot}, row.to)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if step := r.stepSince(row.sameBoot, bootReading{at, row.boot}); step != 0 && (!row.sameBoot || row.boot == 0) {
			t.Errorf("%s: the clock was set forward by %v, and nobody knows that", row.reason, step)
		}
	}
}

// TestJoined: gaps that overlap are one, and there is an end to how many there are.
func TestJoined(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(from, to int) podsource.Gap { return podsource.Gap{From: at(from), To: at(to)} }
	for _, row := range []struct {
		reason string
		gaps   []podsource.Gap
		want   []podsource.Gap
	}{
		{"none", nil, nil},
		{"apart, and out of order", []podsource.Gap{gap(5, 6), gap(1, 2)}, []podsource.Gap{gap(1, 2), gap(5, 6)}},
		{"they touch", []podsource.Gap{gap(1, 2), gap(2, 3)}, []podsource.Gap{gap(1, 3)}},
		{"one within another", []podsource.Gap{gap(1, 5), gap(2, 3), gap(4, 6)}, []podsource.Gap{gap(1, 6)}},
		{"one without a beginning", []podsource.Gap{gap(1, 5), {To: at(2)}}, []podsource.Gap{{To: at(5)}}},
		{"one without an end", []podsource.Gap{{From: at(1)}, gap(2, 3)}, []podsource.Gap{{From: at(1)}}},
		{"one that has none after another", []podsource.Gap{gap(1, 5), {From: at(4)}}, []podsource.Gap{{From: at(1)}}},
	} {
		if diff := cmp.Diff(row.want, joined(row.gaps)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	var many []podsource.Gap
	for i := range 3 * maxGaps {
		many = append(many, gap(10*i, 10*i+1))
	}
	got := joined(slices.Clone(many))
	if len(got) != maxGaps || !got[0].From.Equal(many[0].From) || got[len(got)-1] != many[len(many)-1] {
		t.Errorf("of %d gaps are left %d: %v", len(many), len(got), got)
	}
	for _, g := range many {
		if !slices.ContainsFunc(got, func(j podsource.Gap) bool { return !j.From.After(g.From) && !j.To.Before(g.To) }) {
			t.Errorf("%v was lost", g)
		}
	}
}

// TestCommon: what is in gaps of both, also of those without a beginning or an end.
func TestCommon(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(from, to int) podsource.Gap { return podsource.Gap{From: at(from), To: at(to)} }
	for _, row := range []struct {
		reason string
		a, b   podsource.Gap
		want   []podsource.Gap
	}{
		{"apart", gap(1, 2), gap(3, 4), nil},
		{"a moment", gap(1, 2), gap(2, 3), []podsource.Gap{gap(2, 2)}},
		{"a part", gap(1, 5), gap(3, 9), []podsource.Gap{gap(3, 5)}},
		{"one in another", gap(1, 9), gap(3, 4), []podsource.Gap{gap(3, 4)}},
		{"one in all there is", gap(1, 9), podsource.Gap{}, []podsource.Gap{gap(1, 9)}},
		{"no beginning, and no end", podsource.Gap{To: at(5)}, podsource.Gap{From: at(3)}, []podsource.Gap{gap(3, 5)}},
		{"both without an end", podsource.Gap{From: at(5)}, podsource.Gap{From: at(3)}, []podsource.Gap{{From: at(5)}}},
	} {
		for _, gaps := range [][2]podsource.Gap{{row.a, row.b}, {row.b, row.a}} {
			if diff := cmp.Diff(row.want, common(gaps[:1], gaps[1:])); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
		}
	}
}

// TestBackfillLeavesOpen: what the source can't list yet stays a gap, however often
// it is asked.
func TestBackfillLeavesOpen(t *testing.T) {
	const lag = time.Minute
	at := time.Now()
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	far := at.Add(24 * time.Hour)
	asked := ago(-lag) // stands for: the lag before it is asked
	for _, row := range []struct {
		reason string
		pods   []podsource.Pod
		asOf   time.Time
		from   time.Time // of the gap
	}{
		{"all are listed: the lag", []podsource.Pod{{ContainerIDs: []string{"a"}}}, time.Time{}, asked},
		{"a pod that is starting: since its start (R4)", []podsource.Pod{{UID: "1", StartedAt: ago(time.Hour)}}, time.Time{}, ago(time.Hour)},
		{"... the earliest of them", []podsource.Pod{{UID: "1", StartedAt: ago(time.Hour)}, {UID: "2", StartedAt: ago(2 * time.Hour)}, {UID: "3", StartedAt: ago(0)}}, time.Time{}, ago(2 * time.Hour)},
		{"... since nobody knows when", []podsource.Pod{{UID: "1"}}, time.Time{}, time.Time{}},
		{"... since a time to come (hazard 36)", []podsource.Pod{{UID: "1", StartedAt: far}}, time.Time{}, time.Time{}},
		{"one with more addresses than are known", []podsource.Pod{{UID: "1", IPs: entry("x", "10.9.9.9").IPs, MoreIPs: true, StartedAt: ago(time.Hour)}}, time.Time{}, ago(time.Hour)},
		{"one that has attachments, whatever else", []podsource.Pod{{UID: "1", ContainerIDs: []string{"a"}, MoreIPs: true, StartedAt: ago(time.Hour)}}, time.Time{}, asked},
		{"one that has finished", []podsource.Pod{{UID: "1", Finished: true}}, time.Time{}, asked},
		{"one in the node's network", []podsource.Pod{{UID: "1", HostNetwork: true}}, time.Time{}, asked},
		{"a list of an hour ago", []podsource.Pod{{ContainerIDs: []string{"a"}}}, ago(time.Hour), ago(time.Hour + lag)},
		{"a list of a time to come", []podsource.Pod{{ContainerIDs: []string{"a"}}}, far, time.Time{}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: []string{network1}, Lag: lag})
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				return podsource.Answer{Pods: row.pods, AsOf: row.asOf}, nil
			})
			of := func(p podsource.Pod) (of []Entry, err error) {
				for _, id := range p.ContainerIDs {
					of = append(of, Entry{Key: key(id)})
				}
				return of, nil
			}
			for range 2 {
				before := time.Now()
				if err := c.Backfill(t.Context(), source, of); err != nil {
					t.Fatal(err)
				}
				after := time.Now()
				gaps := c.state.Load().gaps
				if len(gaps) != 1 || gaps[0].To.Before(at.Add(lag)) || gaps[0].To.After(after.Add(lag)) {
					t.Fatalf("gaps %v, want one until the lag after it was first asked", gaps)
				}
				from := gaps[0].From
				right := from.Equal(row.from)
				if row.from.Equal(asked) {
					right = !from.Before(before.Add(-lag)) && !from.After(after.Add(-lag))
				}
				if !right {
					t.Errorf("the gap begins at %v, want %v", from, row.from)
				}
			}
		})
	}
}

// TestBackfillWhileServing: what the agent itself does meanwhile is the truth.
func TestBackfillWhileServing(t *testing.T) {
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, entry("a", "10.0.0.2"))
	source := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		if err := c.Backfill(ctx, noPods, nil); err == nil || !strings.Contains(err.Error(), "somebody else") {
			t.Errorf("a second Backfill beside it: %v", err)
		}
		return runtimeOf("a", "removed", "new", "missed"), errors.Join(c.Add(entry("new", "10.0.0.3")), c.Remove(key("removed")))
	})
	byRuntime := func(p podsource.Pod) (of []Entry, err error) {
		return []Entry{entry(p.ContainerIDs[0], "10.0.0.99")}, nil
	}
	if err := c.Backfill(t.Context(), source, byRuntime); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.3", "10.0.0.99"}, recorded(c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := c.Get(key("removed")); ok || c.removed != nil {
		t.Errorf("what a DEL removed was recorded again: %t; it is noted for ever: %v", ok, c.removed)
	}
	if err := c.Backfill(t.Context(), podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return runtimeOf("removed"), nil }), byRuntime); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Get(key("removed")); !ok {
		t.Error("a removal counts for later questions, too")
	}
}

// TestBackfillEnds: once there is no gap, nobody is asked any more.
func TestBackfillEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, noLag, entry("a", "10.0.0.2"))
	if err := c.Backfill(t.Context(), noPods, nil); err != nil {
		t.Fatal(err)
	}
	before := string(read(t, path))
	if err := c.Backfill(t.Context(), nil, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want %v", err, fs.ErrExist)
	}
	if got := string(read(t, path)); got != before {
		t.Errorf("the file was changed to %s", got)
	}
	if got, err := c.Pods(t.Context()); err != nil || got.Gaps != nil || got.Note != "" {
		t.Errorf("got %+v, %v, want no gaps", got, err)
	}
}

// A finished pod, or one that is starting, is in nobody's way.
//
// Guard: [finishedLongAgo], and [backfill.add], for which only a pod that is starting
// leaves a gap.
func TestHazard61NoObstacle(t *testing.T) {
	n := newNode(t, t.TempDir())
	n.reserve("10.0.0.2", "live")
	n.reserve("10.0.0.3", "leaked")
	c := opened(t, filepath.Join(t.TempDir(), "attachments"), served)
	source := podsource.Static{
		{UID: "evicted", Finished: true},
		{UID: "job", IPs: entry("x", "10.0.0.3").IPs, Finished: true, FinishedAt: time.Now().Add(-time.Hour)},
		{UID: "live", ContainerIDs: []string{"live"}},
		{UID: "starting", StartedAt: time.Now().Add(-time.Minute)},
	}
	err := c.Backfill(t.Context(), source, func(p podsource.Pod) ([]Entry, error) {
		if p.UID == "live" {
			return []Entry{entry("live", "10.0.0.2")}, nil
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.pass(c, gc.Options{}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, n.left()); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
