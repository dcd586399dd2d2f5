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
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// every is all networks.
var every = []string{podsource.EveryNetwork}

// runtimeOf is the answer of a runtime that lists these containers. It may list others
// minutes after their ADD.
func runtimeOf(containers ...string) podsource.Answer {
	a := podsource.Answer{Source: "runtime", Networks: every, Names: podsource.AnyContainer}
	for _, id := range containers {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{id}})
	}
	return a
}

// A version without a record ran for an hour. The record does not speak of reservations
// of that time. Leaks of that time are released if a runtime is asked, too, or after a
// Backfill from it.
//
// Guard: [record.gapsSince] begins a gap at [record.Written], which [Checkpoint.commit]
// and [Checkpoint.Close] set; [podsource.Answer.Gaps] has it.
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
		source func(t *testing.T, c *Checkpoint) podsource.Source // for AtStartup
		left   []string
	}{
		{"the record alone", func(_ *testing.T, c *Checkpoint) podsource.Source { return c }, all},
		{"a reader of the record", func(t *testing.T, c *Checkpoint) podsource.Source { return reader(t, c.path, served) }, all},
		{"the record and the runtime", func(_ *testing.T, c *Checkpoint) podsource.Source { return podsource.Union(runtime, c) }, all[:2]},
		{"the record after a Backfill from the runtime", func(t *testing.T, c *Checkpoint) podsource.Source {
			if err := c.Backfill(t.Context(), runtime, attachments); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(all[:2], recorded(c)); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			return c
		}, all[:2]},
		{"... which was then closed and opened again", func(t *testing.T, c *Checkpoint) podsource.Source {
			if err := errors.Join(c.Backfill(t.Context(), runtime, attachments), c.Close()); err != nil {
				t.Fatal(err)
			}
			return opened(t, c.path, served)
		}, all[:2]},
	} {
		t.Run(row.reason, func(t *testing.T) {
			gctest.Uptime(t, 24*time.Hour)
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

// The writer writes until when the record was kept, with each change and when it is
// closed. For the next writer a gap begins then. The file keeps that gap for later
// writers.
//
// Guard: [Checkpoint.Close] writes the record, and [Checkpoint.commit] keeps
// [record.Gaps].
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
		if inGap(r, since.Add(-time.Hour)) || !inGap(r, closed) || !inGap(r, time.Now().Add(time.Hour)) {
			t.Errorf("a reader's gaps are wrong; it was closed between %v and %v, and opened before %v", kept, closed, since)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGapsSince checks the gaps of a record, by the clocks when it is opened.
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
		boot      time.Duration // the time since the boot when it is opened
		to        time.Time
		want      []podsource.Gap
	}{
		{"since it was written, beside its own gaps", ago(hour), 23 * hour, true, 24 * hour, to,
			[]podsource.Gap{older, old, {From: ago(hour), To: to}}},
		{"without end", ago(hour), 23 * hour, true, 24 * hour, time.Time{}, []podsource.Gap{older, old, {From: ago(hour)}}},
		{"the time since the boot is unknown", ago(hour), 0, true, 0, to, []podsource.Gap{older, old, {From: ago(hour), To: to}}},
		{"... or was when it was written", ago(hour), 0, true, 24 * hour, to, []podsource.Gap{older, old, {From: ago(hour), To: to}}},
		{"it was written in the future, so the clock was set back", ago(-hour), 23 * hour, true, 0, to, []podsource.Gap{{To: to}}},
		{"the clocks differ by no more than the tolerance", ago(hour - clockTolerance), 23 * hour, true, 24 * hour, to,
			[]podsource.Gap{older, old, {From: ago(hour - clockTolerance), To: to}}},
		{"the clock was set forward: timestamps don't show what is older", ago(hour), 24*hour - time.Minute, true, 24 * hour, to,
			[]podsource.Gap{{To: to}}},
		{"the clock was set back: timestamps may be later", ago(-hour), 24*hour - time.Minute, true, 24 * hour, to,
			[]podsource.Gap{{To: to.Add(hour + time.Minute)}}},
		{"... without an end", ago(-hour), 24*hour - time.Minute, true, 24 * hour, time.Time{}, []podsource.Gap{{}}},
		{"a record of an earlier boot: since this boot", ago(48 * hour), hour, false, 2 * hour, to,
			[]podsource.Gap{{From: ago(2*hour + clockTolerance), To: to}}},
		{"... written at an unknown time since that boot", ago(48 * hour), 0, false, 2 * hour, to,
			[]podsource.Gap{{From: ago(2*hour + clockTolerance), To: to}}},
		{"... and the time since this boot is unknown", ago(48 * hour), hour, false, 0, to,
			[]podsource.Gap{{From: ago(48 * hour), To: to}}},
	} {
		r := &record{Written: row.written, SinceBoot: row.sinceBoot, Gaps: []podsource.Gap{older, old}}
		if diff := cmp.Diff(row.want, r.gapsSince(row.sameBoot, bootReading{at, row.boot}, row.to)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if step := r.stepSince(row.sameBoot, bootReading{at, row.boot}); step != 0 && (!row.sameBoot || row.boot == 0 || row.sinceBoot == 0) {
			t.Errorf("%s: got a step of %v, want zero, since it is unknown", row.reason, step)
		}
	}
}

// TestJoined: gaps that overlap are joined, and there are at most maxGaps.
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
		{"one without an end after another", []podsource.Gap{gap(1, 5), {From: at(4)}}, []podsource.Gap{{From: at(1)}}},
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
	if len(got) != maxGaps || !got[0].From.Equal(many[0].From) || got[1].From.Equal(many[1].From) || got[len(got)-1] != many[len(many)-1] {
		t.Errorf("%d gaps became %d: %v", len(many), len(got), got)
	}
	for _, g := range many {
		if !slices.ContainsFunc(got, func(j podsource.Gap) bool { return !j.From.After(g.From) && !j.To.Before(g.To) }) {
			t.Errorf("%v was lost", g)
		}
	}
}

// A gap that ended when the clocks were read grows by a step after that, like a later one.
func TestGapEndsWhenTheClocksAreRead(t *testing.T) {
	now := time.Now()
	s := &state{at: readingOf(now)}
	s.at.wall = s.at.wall.Add(-time.Hour) // the clock is set forward by an hour
	s.gaps = []podsource.Gap{{From: s.at.wall.Add(-time.Hour), To: s.at.wall}}
	if got := s.gapsAt(now)[0].To; !got.Equal(s.at.wall.Add(time.Hour)) {
		t.Errorf("the gap ends at %v, want an hour after %v", got, s.at.wall)
	}
}

// An answer as of the call's own time, as with a coarse clock, is not from the future.
func TestAnswerAsOfTheCall(t *testing.T) {
	asked := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	f := backfill{asked: asked, before: asked.Add(-time.Minute)}
	f.notListedSince(asked)
	if f.before.IsZero() {
		t.Error("it closes no gap")
	}
}

// TestCommon checks intersections, also of gaps without a beginning or an end.
func TestCommon(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(from, to int) podsource.Gap { return podsource.Gap{From: at(from), To: at(to)} }
	for _, row := range []struct {
		reason string
		a, b   podsource.Gap
		want   []podsource.Gap
	}{
		{"apart", gap(1, 2), gap(3, 4), nil},
		{"an instant", gap(1, 2), gap(2, 3), []podsource.Gap{gap(2, 2)}},
		{"a part", gap(1, 5), gap(3, 9), []podsource.Gap{gap(3, 5)}},
		{"one in another", gap(1, 9), gap(3, 4), []podsource.Gap{gap(3, 4)}},
		{"one in all time", gap(1, 9), podsource.Gap{}, []podsource.Gap{gap(1, 9)}},
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

// TestBackfillLeavesOpen: the time in which the source may not list containers yet
// stays a gap, however often it is asked.
func TestBackfillLeavesOpen(t *testing.T) {
	const lag = time.Minute
	at := time.Now()
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	far := at.Add(24 * time.Hour)
	asked := ago(-lag) // stands for the lag before the source is asked
	for _, row := range []struct {
		reason string
		pods   []podsource.Pod
		asOf   time.Time
		from   time.Time // the beginning of the gap
	}{
		{"all are listed: the lag", []podsource.Pod{{ContainerIDs: []string{"a"}}}, time.Time{}, asked},
		{"a pod that is starting: since its start (R4)", []podsource.Pod{{UID: "1", StartedAt: ago(time.Hour)}}, time.Time{}, ago(time.Hour)},
		{"... the earliest of them", []podsource.Pod{{UID: "1", StartedAt: ago(time.Hour)}, {UID: "2", StartedAt: ago(2 * time.Hour)}, {UID: "3", StartedAt: ago(0)}}, time.Time{}, ago(2 * time.Hour)},
		{"... since an unknown time", []podsource.Pod{{UID: "1"}}, time.Time{}, time.Time{}},
		{"... since a time in the future (hazard 36)", []podsource.Pod{{UID: "1", StartedAt: far}}, time.Time{}, time.Time{}},
		{"a pod with more addresses than are known", []podsource.Pod{{UID: "1", IPs: entry("x", "10.9.9.9").IPs, MoreIPs: true, StartedAt: ago(time.Hour)}}, time.Time{}, ago(time.Hour)},
		{"a pod with attachments", []podsource.Pod{{UID: "1", ContainerIDs: []string{"a"}, MoreIPs: true, StartedAt: ago(time.Hour)}}, time.Time{}, asked},
		{"a pod that has finished", []podsource.Pod{{UID: "1", Finished: true}}, time.Time{}, asked},
		{"a pod in the node's network", []podsource.Pod{{UID: "1", HostNetwork: true}}, time.Time{}, asked},
		{"a list of an hour ago", []podsource.Pod{{ContainerIDs: []string{"a"}}}, ago(time.Hour), ago(time.Hour + lag)},
		{"a list of a time in the future", []podsource.Pod{{ContainerIDs: []string{"a"}}}, far, time.Time{}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: []string{network1}, Lag: lag})
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				return podsource.Answer{Pods: row.pods, AsOf: row.asOf, Networks: every, Names: podsource.AnyContainer}, nil
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
					t.Fatalf("gaps %v, want one that ends the lag after the first call", gaps)
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

// TestBackfillWhileServing: changes by the agent during a Backfill take precedence.
func TestBackfillWhileServing(t *testing.T) {
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, entry("a", "10.0.0.2"))
	source := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		if err := c.Backfill(ctx, noPods, nil); err == nil || !strings.Contains(err.Error(), "another Backfill") {
			t.Errorf("a second Backfill meanwhile: %v", err)
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
		t.Errorf("a removed entry was recorded again: %t; removed keys that are left: %v", ok, c.removed)
	}
	if err := c.Backfill(t.Context(), podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return runtimeOf("removed"), nil }), byRuntime); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Get(key("removed")); !ok {
		t.Error("a removal before the Backfill has an effect on it")
	}
}

// TestBackfillEnds: without a gap Backfill does not ask the source.
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

// Finished pods leave no gap, and a starting pod leaves one only since its start.
//
// Guard: [finishedLongAgo] leaves out finished pods, and in [backfill.add] only a
// starting pod leaves a gap.
func TestHazard61NoObstacle(t *testing.T) {
	n := newNode(t, t.TempDir())
	n.reserve("10.0.0.2", "live")
	n.reserve("10.0.0.3", "leaked")
	c := opened(t, filepath.Join(t.TempDir(), "attachments"), served)
	listed := runtimeOf()
	listed.Pods = []podsource.Pod{
		{UID: "evicted", Finished: true},
		{UID: "job", IPs: entry("x", "10.0.0.3").IPs, Finished: true, FinishedAt: time.Now().Add(-time.Hour)},
		{UID: "live", ContainerIDs: []string{"live"}},
		{UID: "starting", StartedAt: time.Now().Add(-time.Minute)},
	}
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return listed, nil })
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

// A Backfill leaves many gaps of other kinds as they are. If it counted them twice, they would
// be joined.
func TestNarrowedKeepsManyGapsOfOthers(t *testing.T) {
	at := func(hours int) time.Time { return time.Date(2025, 3, 1, hours, 0, 0, 0, time.UTC) }
	var gaps []podsource.Gap
	for i := range maxGaps - 1 {
		gaps = append(gaps, podsource.Gap{From: at(2 * i), To: at(2*i + 1), But: podsource.SandboxContainers})
	}
	if diff := cmp.Diff(gaps, narrowed(gaps, podsource.SandboxContainers, at(0), at(2*maxGaps))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The gap before a writer's first moment ends a lag later: an ADD that was in flight then may
// be recorded by nobody.
//
// Guard: [Open] ends the gap after [Options.Lag].
func TestHazard51GapEndsAfterTheLag(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	age := min(5*time.Minute, boottime.Since()/2) // of a record of this boot: SinceBoot is not zero
	content, err := encoded(&record{Written: time.Now().Add(-age), SinceBoot: boottime.Since() - age})
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(content))
	before := time.Now()
	gaps := opened(t, path, Options{Networks: []string{network1}, Lag: time.Hour}).state.Load().gaps
	if to := gaps[len(gaps)-1].To; to.Before(before.Add(time.Hour)) || to.After(time.Now().Add(time.Hour)) {
		t.Errorf("it ends at %v, want an hour after Open at %v", to, before)
	}
}

// What is reserved while a slow source answers was not listed: the gap begins a lag before the
// source was asked.
func TestBackfillOfASlowSource(t *testing.T) {
	const lag = time.Minute
	c := opened(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: []string{network1}, Lag: lag})
	var called time.Time
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		called = time.Now()
		for !time.Now().Round(0).After(called.Round(0)) { // until the clock shows another time
			continue
		}
		return podsource.Answer{Authoritative: true, Networks: every}, nil
	})
	if err := c.Backfill(t.Context(), source, nil); err != nil {
		t.Fatal(err)
	}
	if gaps := c.state.Load().gaps; len(gaps) == 0 || gaps[0].From.After(called.Add(-lag)) {
		t.Errorf("the gaps are %v, and the source was asked at %v", gaps, called)
	}
}

// Two steps of the clock within one lag add up, and the lag counts from the last.
func TestStepsAddUp(t *testing.T) {
	now := time.Now()
	s := &state{at: readingOf(now), steps: clockSteps{time.Hour, now.Add(-time.Minute)}}
	s.at.wall = s.at.wall.Add(-2 * time.Hour) // set forward by two hours
	if got := s.stepsAt(now); got.sum != 3*time.Hour || !got.last.Equal(now) {
		t.Errorf("got %+v", got)
	}
}
