// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var errAny = errors.New("any error")

// TestBackfill checks the first file, or that there is none after an error.
func TestBackfill(t *testing.T) {
	attachments := func(p podsource.Pod) ([]Entry, error) {
		var out []Entry
		for _, id := range p.ContainerIDs {
			out = append(out, Entry{Key: key(id), IPs: p.IPs, UID: p.UID})
		}
		return out, nil
	}
	broken := errors.New("broken")
	pod := podsource.Pod{UID: "1", ContainerIDs: []string{"a", "b"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
	pods := func(networks ...string) podsource.Answer {
		return podsource.Answer{Pods: []podsource.Pod{pod}, Networks: networks}
	}
	past, recent := time.Now().Add(-5*time.Minute), time.Now().Add(-time.Minute)
	finished := func(at time.Time) podsource.Pod {
		return podsource.Pod{UID: "f", ContainerIDs: []string{"f"}, IPs: pod.IPs, Finished: true, FinishedAt: at}
	}
	again := pod
	again.UID = "2"
	both := []string{"a", "b"}
	fails := func(podsource.Pod) ([]Entry, error) { return nil, broken }
	invalid := func(podsource.Pod) ([]Entry, error) { return []Entry{{Key: key("a")}, {Key: key("")}}, nil }
	supplementary := func(pods ...podsource.Pod) podsource.Answer {
		return podsource.Answer{Supplementary: true, Networks: every, Pods: pods}
	}
	for _, row := range []struct {
		reason string
		source podsource.Source
		of     func(podsource.Pod) ([]Entry, error)
		want   []string // container IDs
		is     error    // nil: none
	}{
		{"two sandboxes of a pod", podsource.Static{pod}, attachments, both, nil},
		{"a pod in the node's network has no attachment", podsource.Static{pod, {HostNetwork: true, ContainerIDs: []string{"h"}}},
			attachments, both, nil},
		{"seen twice: the first counts", podsource.Static{pod, again}, attachments, both, nil},
		{"a pod that has no attachment in this network", podsource.Static{pod, {IPs: pod.IPs}}, attachments, both, nil},
		{"a supplementary member with other pods",
			answers(pods(podsource.EveryNetwork), supplementary(podsource.Pod{ContainerIDs: []string{"c"}})), attachments, append(both, "c"), nil},
		{"a supplementary member without pods", answers(pods(podsource.EveryNetwork), supplementary()), attachments, both, nil},
		{"no pods, and the source is authoritative", noPods, nil, []string{}, nil},
		{"no pods, and it is not (R9)", podsource.Static{}, attachments, nil, errAny},
		{"no pods in one member that is not authoritative (R9)", podsource.Union(podsource.Static{pod}, podsource.Static{}),
			attachments, nil, errAny},
		{"only pods that finished long ago (R9, hazard 43)", podsource.Static{finished(past)}, attachments, nil, errAny},
		{"a member for each network", answers(pods(network1), pods("storage")), attachments, both, nil},
		{"a GC request of one network", answers(pods(network1)), attachments, nil, errAny},
		{"a cache of results alone, which may have been wiped", answers(supplementary()), attachments, nil, errAny},
		{"the source fails", podsource.Func(func(context.Context) ([]podsource.Pod, error) { return []podsource.Pod{pod}, broken }),
			attachments, nil, broken},
		{"attachmentsOf fails", podsource.Static{pod}, fails, nil, broken},
		{"a pod that has just finished: its sandbox may still run", podsource.Static{finished(recent)}, attachments, []string{"f"}, nil},
		{"a pod that finished at an unknown time", podsource.Static{finished(time.Time{})}, attachments, []string{"f"}, nil},
		{"an invalid attachment", podsource.Static{pod}, invalid, nil, errAny},
	} {
		path := newPath(t)
		c := opened(t, path, Options{Networks: []string{network1, "storage"}})
		err := c.Backfill(t.Context(), row.source, row.of)
		if row.is != nil {
			_, statErr := os.Lstat(path)
			if err == nil || row.is != errAny && !errors.Is(err, row.is) || !errors.Is(statErr, fs.ErrNotExist) || c.state.Load().written {
				t.Errorf("%s: error %v, want %v; a file: %v", row.reason, err, row.is, statErr)
			}
			continue
		}
		must(t, err)
		same(t, row.reason, row.want, ids(t, c))
		if e, ok := c.Get(key("a")); ok && e.UID != "1" {
			t.Errorf("%s: it is of pod %s", row.reason, e.UID)
		}
	}
}

// Evicted pods, and finished pods that still list an address, are not recorded, and leave no gap; a starting pod leaves one
// only since its start.
//
// Guard: [finishedLongAgo] leaves out pods that have no attachment any more, and
// [backfill.add] returns no error for a pod without addresses and containers.
func TestHazard61FinishedPods(t *testing.T) {
	n, c := newNode(t, "live", "leaked"), opened(t, newPath(t), served)
	reserved := map[string]string{"10.0.0.2": "live", "10.0.0.3": "new-owner"}
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	list := runtimeOf()
	list.Pods = []podsource.Pod{
		{UID: "evicted-long-ago", Finished: true, FinishedAt: ago(24 * time.Hour)},
		{UID: "live", IPs: entry("", "10.0.0.2").IPs},
		{UID: "evicted", Finished: true},
		{UID: "evicted-a-minute-ago", Finished: true, FinishedAt: ago(time.Minute)},
		{UID: "job", IPs: entry("", "10.0.0.3").IPs, Finished: true, FinishedAt: ago(time.Hour)},
		{UID: "starting", StartedAt: ago(time.Minute)},
	}
	given := slices.Clone(list.Pods)
	must(t, c.Backfill(t.Context(), answers(list), func(p podsource.Pod) (of []Entry, err error) {
		for _, ip := range p.IPs {
			of = append(of, Entry{Key: key(reserved[ip.String()]), UID: p.UID})
		}
		return of, nil
	}))
	same(t, "the source's pods", given, list.Pods)
	same(t, "recorded", []string{"live"}, ids(t, c))
	n.keeps("after the hook", c, "10.0.0.2")
}

// TestBackfillLeavesOpen: the time in which the source may not list containers yet
// stays a gap, however often it is asked.
func TestBackfillLeavesOpen(t *testing.T) {
	const lag = time.Minute
	at := time.Now()
	ago := func(d time.Duration) time.Time { return at.Add(-d).Round(0) }
	far, asked := at.Add(24*time.Hour), ago(-24*time.Hour) // stands for the lag before the source is asked
	list := func(pods ...podsource.Pod) podsource.Answer { return podsource.Answer{Pods: pods} }
	dated := func(asOf time.Time, gaps ...podsource.Gap) podsource.Answer {
		return podsource.Answer{Pods: []podsource.Pod{{ContainerIDs: []string{"a"}}}, AsOf: asOf, Gaps: gaps}
	}
	ip := entry("x", "10.9.9.9").IPs
	for _, row := range []struct {
		reason string
		answer podsource.Answer
		from   time.Time // the beginning of the gap
	}{
		{"all are listed: the lag", list(podsource.Pod{ContainerIDs: []string{"a"}}), asked},
		{"a pod that is starting: since its start (R4)", list(podsource.Pod{StartedAt: ago(time.Hour)}), ago(time.Hour)},
		{"... the earliest of them", list(podsource.Pod{UID: "1", StartedAt: ago(time.Hour)},
			podsource.Pod{UID: "2", StartedAt: ago(2 * time.Hour)}, podsource.Pod{UID: "3", StartedAt: ago(0)}), ago(2 * time.Hour)},
		{"... since an unknown time", list(podsource.Pod{UID: "1"}), time.Time{}},
		{"... since a time in the future (hazard 36)", list(podsource.Pod{UID: "1", StartedAt: far}), time.Time{}},
		{"more addresses than are known", list(podsource.Pod{IPs: ip, MoreIPs: true, StartedAt: ago(time.Hour)}), ago(time.Hour)},
		{"... of a known container", list(podsource.Pod{ContainerIDs: []string{"unknown"}, MoreIPs: true, StartedAt: ago(time.Hour)}), asked},
		{"... with attachments", list(podsource.Pod{UID: "attached", MoreIPs: true, StartedAt: ago(time.Hour)}), asked},
		{"its addresses are known", list(podsource.Pod{IPs: ip, StartedAt: ago(time.Hour)}), asked},
		{"a pod that has finished", list(podsource.Pod{UID: "1", Finished: true}), asked},
		{"a pod in the node's network", list(podsource.Pod{UID: "1", HostNetwork: true}), asked},
		{"a list of an hour ago", dated(ago(time.Hour)), ago(time.Hour + lag)},
		{"a list of a time in the future", dated(far), time.Time{}},
		{"... soon", dated(at.Add(lag / 2)), time.Time{}},
		{"a record with a gap", dated(time.Time{}, podsource.Gap{From: ago(time.Hour)},
			podsource.Gap{From: ago(2 * time.Hour), To: ago(time.Hour)}), ago(2 * time.Hour)},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, newPath(t), Options{Networks: []string{network1}, Lag: lag})
			row.answer.Networks, row.answer.Names = every, podsource.AnyContainer
			of := func(p podsource.Pod) (of []Entry, err error) {
				if slices.Contains(p.ContainerIDs, "a") || p.UID == "attached" {
					of = append(of, Entry{Key: key("a")})
				}
				return of, nil
			}
			var called time.Time
			slow := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				called = time.Now()
				for !time.Now().Round(0).After(called.Round(0)) { // what is reserved now is not listed
					continue
				}
				return row.answer, nil
			})
			for range 2 {
				before := time.Now()
				must(t, c.Backfill(t.Context(), slow, of))
				g := c.state.Load().gap
				if g.Others != g.From || g.To.Before(at.Add(lag)) || g.To.After(time.Now().Add(lag)) {
					t.Fatalf("gap %v, want one that ends the lag after the first call", g)
				}
				right := g.From.Equal(row.from)
				if row.from.Equal(asked) {
					right = !g.From.Before(before.Add(-lag)) && !g.From.After(called.Add(-lag))
				}
				if !right {
					t.Errorf("the gap begins at %v, want %v", g.From, row.from)
				}
			}
		})
	}
}

// TestBackfillOfKinds: any container is listed only if some member that counts names any in each network.
func TestBackfillOfKinds(t *testing.T) {
	in := func(network string, kind podsource.Kind) podsource.Answer {
		return podsource.Answer{Networks: []string{"elsewhere", network}, Names: kind, Authoritative: true}
	}
	any, sandboxes := podsource.AnyContainer, podsource.SandboxContainers
	for _, row := range []struct {
		reason  string
		members []podsource.Answer
		want    podsource.Kind
	}{
		{"sandboxes in both", []podsource.Answer{in("n", sandboxes), in("m", sandboxes)}, sandboxes},
		{"pods in both", []podsource.Answer{in("n", 0), in("m", 0)}, sandboxes},
		{"any in the first", []podsource.Answer{in("n", any), in("m", sandboxes)}, sandboxes},
		{"any in the second", []podsource.Answer{in("n", 0), in("m", any)}, sandboxes},
		{"any in both", []podsource.Answer{in("n", any), in("m", any)}, any},
		{"any beside others", []podsource.Answer{in("n", any), in("n", sandboxes), in("m", 0), in("m", any)}, any},
		{"any in a supplementary one", []podsource.Answer{in("n", any), in("m", 0),
			{Networks: every, Names: any, Supplementary: true}}, sandboxes},
	} {
		f := backfill{attachmentsOf: by(nil), asked: time.Now()}
		if err := f.ask(t.Context(), answers(row.members...), []string{"n", "m"}); err != nil || f.kind != row.want {
			t.Errorf("%s: got %v, %v, want %v", row.reason, f.kind, err, row.want)
		}
	}
}

// TestBackfillWhileServing: changes by the agent during a Backfill take precedence. A failed change and a removal before it
// have no effect on it.
func TestBackfillWhileServing(t *testing.T) {
	c := begun(t, newPath(t), served, entry("a", "10.0.0.2"))
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return runtimeOf("a", "removed", "new", "missed"), errors.Join(c.Add(entry("new", "10.0.0.3")), c.Remove(key("removed")))
	})
	ips := by(map[string]string{"a": "10.0.0.99", "removed": "10.0.0.98", "new": "10.0.0.99", "missed": "10.0.0.99"})
	must(t, c.Backfill(t.Context(), source, ips))
	same(t, "recorded", []string{"10.0.0.2", "10.0.0.3", "10.0.0.99"}, recorded(c))
	must(t, c.Remove(key("removed")), c.Backfill(t.Context(), answers(runtimeOf("removed")), ips))
	same(t, "after a removal before it", []string{"10.0.0.2", "10.0.0.3", "10.0.0.98", "10.0.0.99"}, recorded(c))
}

// TestBackfillEnds: a later Backfill opens no gap again, also if its context has ended or its source lists less. Without a gap the
// source is not asked.
func TestBackfillEnds(t *testing.T) {
	c := begun(t, newPath(t), noLag, entry("a", "10.0.0.2"))
	set(c, 0, gap{From: time.Now().Add(-time.Hour)}, time.Time{})
	was := c.state.Load().gap
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	list := runtimeOf("b")
	list.Pods[0] = podsource.Pod{StartedAt: was.From.Add(-time.Hour)}
	err := c.Backfill(ended, podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) { return list, ctx.Err() }), by(nil))
	must(t, c.Backfill(t.Context(), answers(list), by(nil)))
	if now := c.state.Load().gap; !errors.Is(err, context.Canceled) || now.From != was.From {
		t.Errorf("the gap was %v and is %v; error %v", was, now, err)
	}
	c = begun(t, newPath(t), noLag)
	before := string(read(t, c.path))
	if err := c.Backfill(t.Context(), nil, nil); !errors.Is(err, fs.ErrExist) || string(read(t, c.path)) != before {
		t.Errorf("got %v, want %v, and no change", err, fs.ErrExist)
	}
	if got, err := c.Pods(t.Context()); err != nil || got.Gaps != nil || got.Note != "" {
		t.Errorf("got %+v, %v, want no gaps", got, err)
	}
	f := backfill{asked: at(5), before: at(3)} // a coarse clock shows the same time for a list as for the call
	if f.notListedSince(at(5)); f.before != at(3) {
		t.Errorf("a list of the time of the call counts as one of %v", f.before)
	}
}

// TestAddBeforeBackfill: a record that began with one attachment would declare that
// there is no other, and the node's older pods would lose their addresses. So it is, too, after a Backfill that failed.
func TestAddBeforeBackfill(t *testing.T) {
	c := opened(t, newPath(t), served)
	for _, c.dirty = range []bool{false, true} {
		if err := c.Add(entry("a", "10.0.0.2")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v, want %v", err, fs.ErrNotExist)
		}
		must(t, c.Remove(key("a")))
		if gone, err := c.Prune(t.Context()); gone != nil || err != nil {
			t.Errorf("Prune without entries: %v, %v", gone, err)
		}
		got, err := c.Pods(t.Context())
		if same(t, "Pods", errorAnswer, got); !errors.Is(err, podsource.ErrNotHere) || !strings.Contains(err.Error(), "never written") {
			t.Errorf("Pods: %v, want %v", err, podsource.ErrNotHere)
		}
	}
	must(t, c.Close())
	if _, err := os.Lstat(c.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was written: %v", err)
	}
}
