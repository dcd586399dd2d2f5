// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestGapsAtAStep: after the clock is set, gaps that had not ended grow, since
// timestamps may be of the old or the new clock. Gaps that had ended stay.
func TestGapsAtAStep(t *testing.T) {
	read := time.Now()
	at := func(minutes int) time.Time { return read.Round(0).Add(time.Duration(minutes) * time.Minute) }
	ended, open, ever := podsource.Gap{From: at(-9), To: at(-8)}, podsource.Gap{From: at(-3), To: at(20)}, podsource.Gap{From: at(30)}
	for _, row := range []struct {
		reason  string
		forward int // minutes
		want    []podsource.Gap
	}{
		{"not set", 0, []podsource.Gap{ended, open, ever}},
		{"forward: gaps end later", 5, []podsource.Gap{ended, {From: at(-3), To: at(25)}, ever}},
		{"back: gaps begin earlier", -4, []podsource.Gap{ended, {From: at(-7), To: at(20)}, {From: at(26)}}},
	} {
		// The wall clock has gone forward by that many minutes, and the monotonic clock
		// by none.
		s := &state{gaps: []podsource.Gap{ended, open, ever}, at: reading{at(-row.forward), read}}
		if diff := cmp.Diff(row.want, s.gapsAt(read)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// TestGapWithoutABeginningAtAStep: a step does not give it a beginning.
func TestGapWithoutABeginningAtAStep(t *testing.T) {
	read := time.Now()
	want := []podsource.Gap{{To: read.Round(0).Add(time.Hour)}}
	s := &state{gaps: want, at: reading{read.Round(0).Add(time.Minute), read}} // set back since
	if diff := cmp.Diff(want, s.gapsAt(read)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNarrowedToAnInstant: a gap that ends when the remaining gap begins is not dropped,
// since both ends are included.
func TestNarrowedToAnInstant(t *testing.T) {
	at := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	later := podsource.Gap{From: at.Add(time.Minute), To: at.Add(time.Hour)} // stays
	got := narrowed([]podsource.Gap{{From: at.Add(-time.Hour), To: at}, later}, podsource.AnyContainer, at, at)
	if diff := cmp.Diff([]podsource.Gap{{From: at, To: at}, later}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCommonOfSeveral: each gap is intersected with each of the others.
func TestCommonOfSeveral(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(from, to int, but podsource.Kind) podsource.Gap {
		return podsource.Gap{From: at(from), To: at(to), But: but}
	}
	got := common([]podsource.Gap{gap(1, 5, 0), gap(10, 20, podsource.SandboxContainers)}, []podsource.Gap{gap(2, 3, 0), gap(4, 15, 0)})
	want := []podsource.Gap{gap(2, 3, 0), gap(4, 5, 0), gap(10, 15, podsource.SandboxContainers)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestGapsNote: the note has each gap.
func TestGapsNote(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	const want = "the record may lack attachments of these times, so it does not speak of their reservations: " +
		"ever to 2025-03-01T12:01:00Z, 2025-03-01T12:02:00Z to now (except sandboxes)"
	if diff := cmp.Diff(want, gapsNote([]podsource.Gap{{To: at(1)}, {From: at(2), But: podsource.SandboxContainers}})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := gapsNote(nil); got != "" {
		t.Errorf("no gaps: got %q", got)
	}
}

// TestCheckMembersOfSeveral: a member's gap in a network counts if all members have
// gaps there, and any container is listed only if some member names any in each network.
func TestCheckMembersOfSeveral(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(minute int) []podsource.Gap { return []podsource.Gap{{From: at(minute), To: at(minute + 1)}} }
	f := backfill{networks: []string{"n"}}
	if err := f.checkMembers([]podsource.Answer{{Networks: every, Gaps: gap(1)}, {Networks: every, Gaps: gap(3)}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Concat(gap(1), gap(3)), f.gaps); diff != "" {
		t.Errorf("gaps of both (-want +got):\n%s", diff)
	}
	f = backfill{networks: []string{"n"}}
	if err := f.checkMembers([]podsource.Answer{{Networks: every, Names: podsource.AnyContainer, Gaps: gap(1)}, {Networks: every}}); err != nil {
		t.Fatal(err)
	}
	if f.gaps != nil || f.kind != podsource.SandboxContainers {
		t.Errorf("beside a member without gaps: gaps %v, kind %v; want no gaps and that member's kind", f.gaps, f.kind)
	}
	in := func(network string, kind podsource.Kind) podsource.Answer {
		return podsource.Answer{Networks: []string{"elsewhere", network}, Names: kind}
	}
	for _, row := range []struct {
		reason string
		kinds  [2]podsource.Kind // in two networks
		want   podsource.Kind
	}{
		{"sandboxes in both", [2]podsource.Kind{podsource.SandboxContainers, podsource.SandboxContainers}, podsource.SandboxContainers},
		{"pods in both", [2]podsource.Kind{}, podsource.SandboxContainers},
		{"any in the first", [2]podsource.Kind{podsource.AnyContainer, podsource.SandboxContainers}, podsource.SandboxContainers},
		{"any in the second", [2]podsource.Kind{podsource.KubernetesPods, podsource.AnyContainer}, podsource.SandboxContainers},
		{"any in both", [2]podsource.Kind{podsource.AnyContainer, podsource.AnyContainer}, podsource.AnyContainer},
	} {
		f := backfill{networks: []string{"n", "m"}}
		if err := f.checkMembers([]podsource.Answer{in("n", row.kinds[0]), in("m", row.kinds[1])}); err != nil {
			t.Fatal(err)
		}
		if f.kind != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, f.kind, row.want)
		}
	}
}

// TestBackfillFromTheFuture: if the time of a list is in the future, its age is unknown
// (hazard 36), so the gap has no beginning.
func TestBackfillFromTheFuture(t *testing.T) {
	c := opened(t, filepath.Join(t.TempDir(), "attachments"), served)
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		a := runtimeOf("a")
		a.AsOf = time.Now().Add(DefaultLag / 2)
		return a, nil
	})
	if err := c.Backfill(t.Context(), source, func(podsource.Pod) ([]Entry, error) { return []Entry{entry("a", "10.0.0.2")}, nil }); err != nil {
		t.Fatal(err)
	}
	answer, err := c.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Gaps) != 1 || !answer.Gaps[0].From.IsZero() {
		t.Errorf("got gaps %v, want one without a beginning", answer.Gaps)
	}
}

// TestBackfillFromADatedList: a list may lack a reservation made within the lag before its
// date, and its timestamp differs if the clock was set then.
func TestBackfillFromADatedList(t *testing.T) {
	const slack = 30 * time.Minute
	a := runtimeOf("a")
	a.AsOf = time.Now().Round(0).Add(-time.Hour)
	f := backfill{asked: time.Now(), lag: DefaultLag, slack: slack, attachmentsOf: func(podsource.Pod) ([]Entry, error) {
		return []Entry{entry("a", "10.0.0.2")}, nil
	}}
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return a, nil })
	if err := f.ask(t.Context(), source); err != nil {
		t.Fatal(err)
	}
	if want := a.AsOf.Add(-DefaultLag - slack); !f.before.Equal(want) {
		t.Errorf("it lists all that was reserved before %v, want %v", f.before, want)
	}
}

// TestStartingPodLeavesAGap: a pod leaves a gap only if neither its container nor all
// its addresses are known, and it has not finished.
func TestStartingPodLeavesAGap(t *testing.T) {
	asked := time.Now()
	ip := entry("a", "10.0.0.2").IPs
	for _, row := range []struct {
		reason string
		pod    podsource.Pod
		of     []Entry
		gap    bool
	}{
		{"neither is known", podsource.Pod{}, nil, true},
		{"not all addresses are known", podsource.Pod{IPs: ip, MoreIPs: true}, nil, true},
		{"... and its container is known by one of them", podsource.Pod{IPs: ip, MoreIPs: true}, []Entry{entry("a", "10.0.0.2")}, false},
		{"its addresses are known", podsource.Pod{IPs: ip}, nil, false},
		{"its container is known", podsource.Pod{ContainerIDs: []string{"a"}}, nil, false},
		{"it has finished", podsource.Pod{Finished: true}, nil, false},
	} {
		before := asked.Add(-time.Minute)
		f := backfill{asked: asked, before: before, attachmentsOf: func(podsource.Pod) ([]Entry, error) { return row.of, nil }}
		row.pod.StartedAt = asked.Add(-time.Hour)
		if err := f.add(row.pod); err != nil {
			t.Fatal(err)
		}
		if got := f.before.Before(before); got != row.gap {
			t.Errorf("%s: leaves a gap: %t, want %t", row.reason, got, row.gap)
		}
	}
}

// TestContextEnds: Prune and Backfill end with the context.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, entry("a", "10.0.0.2"))
	if gone, err := c.Prune(ctx); !errors.Is(err, context.Canceled) || gone != nil {
		t.Errorf("pruned %v, %v", gone, err)
	}
	source := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) { return runtimeOf("a"), ctx.Err() })
	if err := c.Backfill(ctx, source, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Backfill: %v", err)
	}
	if live, gone, err := divide(ctx, []Entry{entry("a", "10.0.0.2")}); !errors.Is(err, context.Canceled) || live != nil || gone != nil {
		t.Errorf("got %v, %v, %v", live, gone, err)
	}
}
