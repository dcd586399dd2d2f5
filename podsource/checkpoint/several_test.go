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

// TestGapsAtAStep: when the clock is set, each gap that had not ended grows to what
// timestamps of both clocks can mean, and those that had ended stay.
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
		{"forward: what ends does so later", 5, []podsource.Gap{ended, {From: at(-3), To: at(25)}, ever}},
		{"back: what begins has begun earlier", -4, []podsource.Gap{ended, {From: at(-7), To: at(20)}, {From: at(26)}}},
	} {
		// That many minutes have passed by the wall clock, and none by the monotonic one.
		s := &state{gaps: []podsource.Gap{ended, open, ever}, at: reading{at(-row.forward), read}}
		if diff := cmp.Diff(row.want, s.gapsAt(read)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// TestGapWithoutABeginningAtAStep: it has none when the clock was set, either.
func TestGapWithoutABeginningAtAStep(t *testing.T) {
	read := time.Now()
	want := []podsource.Gap{{To: read.Round(0).Add(time.Hour)}}
	s := &state{gaps: want, at: reading{read.Round(0).Add(time.Minute), read}} // set back since
	if diff := cmp.Diff(want, s.gapsAt(read)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNarrowedToAMoment: a gap that ends in the moment from which on all are recorded is
// that moment still.
func TestNarrowedToAMoment(t *testing.T) {
	at := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	later := podsource.Gap{From: at.Add(time.Minute), To: at.Add(time.Hour)} // which stays as it is
	got := narrowed([]podsource.Gap{{From: at.Add(-time.Hour), To: at}, later}, podsource.AnyForm, at, at)
	if diff := cmp.Diff([]podsource.Gap{{From: at, To: at}, later}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCommonOfSeveral: each gap counts with each of the others.
func TestCommonOfSeveral(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(from, to int, but podsource.Form) podsource.Gap {
		return podsource.Gap{From: at(from), To: at(to), But: but}
	}
	got := common([]podsource.Gap{gap(1, 5, ""), gap(10, 20, podsource.Hex64)}, []podsource.Gap{gap(2, 3, ""), gap(4, 15, "")})
	want := []podsource.Gap{gap(2, 3, ""), gap(4, 5, ""), gap(10, 15, podsource.Hex64)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNote: people are told of each gap.
func TestNote(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	const want = "it says nothing of reservations that were made while it was not kept, or may not have been: " +
		"ever to 2025-03-01T12:01:00Z, 2025-03-01T12:02:00Z to now (but for container IDs of the form <64 hex digits>)"
	if diff := cmp.Diff(want, gapsNote([]podsource.Gap{{To: at(1)}, {From: at(2), But: podsource.Hex64}})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := gapsNote(nil); got != "" {
		t.Errorf("got %q of no gaps", got)
	}
}

// TestFormOf: a form counts if a member lists all containers of it, in that network.
func TestFormOf(t *testing.T) {
	const other = "default-" + podsource.Hex64
	names := func(form podsource.Form, networks ...string) podsource.Answer {
		return podsource.Answer{Names: []podsource.Names{{Form: form, Networks: networks}}}
	}
	for _, row := range []struct {
		reason  string
		members []podsource.Answer
		want    podsource.Form
	}{
		{"nobody says which", []podsource.Answer{{}}, podsource.AnyForm},
		{"a list of pods of a form", []podsource.Answer{{Forms: []podsource.Form{podsource.Hex64}}}, podsource.Hex64},
		{"the second of two", []podsource.Answer{{}, names(podsource.Hex64)}, podsource.Hex64},
		{"a form in this network", []podsource.Answer{names(podsource.Hex64, "other", "n")}, podsource.Hex64},
		{"a form in another network only", []podsource.Answer{names(podsource.Hex64, "other")}, podsource.AnyForm},
		{"the second declaration", []podsource.Answer{{Names: []podsource.Names{{Form: podsource.Hex64, Networks: []string{"other"}}, {Form: other}}}}, other},
		{"any beside one", []podsource.Answer{names(other), names(podsource.AnyForm)}, podsource.AnyForm},
		{"the usual one beside another", []podsource.Answer{names(other), names(podsource.Hex64)}, podsource.Hex64},
		{"another one alone", []podsource.Answer{names(other)}, other},
	} {
		if got := formOf(row.members, "n"); got != row.want {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
}

// TestCompleteOfSeveral: what a member was not told in a network counts where no other
// member was, and the record's form is one that holds in all its networks.
func TestCompleteOfSeveral(t *testing.T) {
	at := func(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }
	gap := func(minute int) []podsource.Gap { return []podsource.Gap{{From: at(minute), To: at(minute + 1)}} }
	f := backfill{networks: []string{"n"}}
	if err := f.checkMembers([]podsource.Answer{{Gaps: gap(1)}, {Gaps: gap(3)}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Concat(gap(1), gap(3)), f.gaps); diff != "" {
		t.Errorf("gaps of both (-want +got):\n%s", diff)
	}
	f = backfill{networks: []string{"n"}}
	if err := f.checkMembers([]podsource.Answer{{Gaps: gap(1)}, {Forms: []podsource.Form{podsource.Hex64}}}); err != nil {
		t.Fatal(err)
	}
	if f.gaps != nil || f.form != podsource.Hex64 {
		t.Errorf("beside one that was told all: gaps %v, form %q; want what that one means", f.gaps, f.form)
	}
	in := func(network string, form podsource.Form) podsource.Answer {
		return podsource.Answer{Networks: []string{"elsewhere", network}, Forms: []podsource.Form{form}}
	}
	const other = "default-" + podsource.Hex64
	for _, row := range []struct {
		reason string
		forms  [2]podsource.Form // in two networks
		want   podsource.Form
	}{
		{"one in both", [2]podsource.Form{podsource.Hex64, podsource.Hex64}, podsource.Hex64},
		{"any in the first", [2]podsource.Form{podsource.AnyForm, podsource.Hex64}, podsource.Hex64},
		{"any in the second", [2]podsource.Form{podsource.Hex64, podsource.AnyForm}, podsource.Hex64},
		{"two: none holds in both", [2]podsource.Form{podsource.Hex64, other}, ""},
	} {
		f := backfill{networks: []string{"n", "m"}}
		if err := f.checkMembers([]podsource.Answer{in("n", row.forms[0]), in("m", row.forms[1])}); err != nil {
			t.Fatal(err)
		}
		if f.form != row.want {
			t.Errorf("%s: got %q, want %q", row.reason, f.form, row.want)
		}
	}
}

// TestBackfillFromTheFuture: a list whose date lies in the future, by however little, says
// nothing of how old it is (hazard 36), so nothing that is not recorded is spoken of.
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
		t.Errorf("got gaps %v, want one that began ever", answer.Gaps)
	}
}

// TestStartingPodLeavesAGap: only a pod may hold what it does not name of which neither the
// container nor all addresses are known, and that has not finished.
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
		{"... but by one of them the container", podsource.Pod{IPs: ip, MoreIPs: true}, []Entry{entry("a", "10.0.0.2")}, false},
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

// TestContextEnds: looking for namespaces ends with the context, and so does what asks a
// source.
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
