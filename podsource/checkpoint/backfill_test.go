// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// at is a time of minutes after noon.
func at(minutes int) time.Time { return time.Date(2025, 3, 1, 12, minutes, 0, 0, time.UTC) }

// encoded writes a record of network1, as another process does.
func encoded(t *testing.T, path string, r record) {
	t.Helper()
	r.Networks, r.Entries = []string{network1}, append([]Entry{}, r.Entries...)
	content, err := encode(r)
	must(t, err)
	write(t, path, string(content))
}

// TestGapUntil: the gap of a record that was written at 12:50, and is read at 12:59.
func TestGapUntil(t *testing.T) {
	booted := at(49).Add(-clockTolerance)
	none, own, ever := gap{at(20), at(20), at(10)}, gap{at(5), time.Time{}, at(10)}, gap{To: at(66)}
	const min, lag = time.Minute, 7 * time.Minute
	of := func(written, sinceBoot int, own gap) *record {
		return &record{Written: at(written), SinceBoot: time.Duration(sinceBoot) * min, Gap: own}
	}
	for _, row := range []struct {
		reason  string
		of      *record
		boot    time.Duration // since the boot, when it is read
		lag     time.Duration
		want    gap
		stepped bool
	}{
		{"since it was written", of(50, 50, none), 59 * min, lag, gap{at(50), at(50), at(66)}, false},
		{"... without end", of(50, 50, none), 59 * min, 0, gap{From: at(50), Others: at(50)}, false},
		{"from where its own begins", of(50, 50, own), 59 * min, lag, gap{at(5), time.Time{}, at(66)}, false},
		{"its own is an instant", of(50, 50, gap{at(10), at(10), at(10)}), 59 * min, lag, gap{at(10), at(10), at(66)}, false},
		{"its own is for others", of(50, 50, gap{at(20), at(5), at(10)}), 59 * min, lag, gap{at(50), at(5), at(66)}, false},
		{"the time since the boot is unknown", of(50, 50, none), 0, lag, gap{at(50), at(50), at(66)}, false},
		{"... or was when it was written", of(50, 0, none), 59 * min, lag, gap{at(50), at(50), at(66)}, false},
		{"it was written in the future, so the clock was set back", of(60, 60, none), 0, lag, ever, false},
		{"at this very moment", of(59, 59, none), 59 * min, lag, gap{at(59), at(59), at(66)}, false},
		{"the clocks differ by the tolerance", of(50, 50, none), 59*min + clockTolerance, lag, gap{at(50), at(50), at(66)}, false},
		{"the clock was set forward: timestamps don't show what is older", of(50, 55, none), 59 * min, lag, ever, true},
		{"it was set back: timestamps may be later", of(50, 50, none), 69 * min, lag, gap{To: at(76)}, true},
		{"... without end", of(50, 50, none), 69 * min, 0, gap{}, true},
		{"an earlier boot: since this one", emptySince(at(59), 10*min), 10 * min, lag, gap{booted, booted, at(66)}, false},
		{"... and the time since this boot is unknown", emptySince(at(59), 0), 0, lag, ever, false},
	} {
		got, stepped := row.of.gapUntil(row.lag, at(59), row.boot)
		check(t, got == row.want && stepped.IsZero() != row.stepped, "%s: got %v, %v, want %v", row.reason, got, stepped, row.want)
	}
}

// TestGapAnswer: there are two gaps if sandboxes are known since another time, and none where it would end before it begins.
func TestGapAnswer(t *testing.T) {
	all := func(from int) podsource.Gap { return podsource.Gap{From: at(from), To: at(9)} }
	others := podsource.Gap{From: at(2), To: at(9), But: podsource.SandboxContainers}
	for _, row := range []struct {
		from, others int
		want         []podsource.Gap
	}{
		{5, 5, []podsource.Gap{all(5)}}, {5, 2, []podsource.Gap{others, all(5)}}, {9, 2, []podsource.Gap{others, all(9)}},
		{10, 2, []podsource.Gap{others}}, {10, 10, nil}, {12, 11, nil},
	} {
		same(t, fmt.Sprintf("%+v", row), row.want, gap{at(row.from), at(row.others), at(9)}.answer())
	}
	check(t, len(gap{at(10), at(9), at(9)}.answer()) == 1, "there is no gap of an instant")
	same(t, "without end", []podsource.Gap{{From: at(1)}}, gap{From: at(1), Others: at(1)}.answer())
}

// set simulates that the wall clock was set forward since it was read last, and sets the gap, and when a step was seen.
func set(c *Checkpoint, forward time.Duration, g gap, stepped time.Time) {
	s := *c.state.Load()
	s.wall, s.gap, s.stepped = s.wall.Add(-forward), g, stepped
	c.state.Store(&s)
}

// After the clock is set, a gap that had not ended has timestamps of the old and of the new clock. It is so in the answer, and in
// the file, and the next step is compared with the new clock.
//
// Guard: [state.at].
func TestHazard52ClockIsSetInAGap(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) time.Time { return now.Round(0).Add(d) }
	open, ended := gap{in(-time.Hour), in(-2 * time.Hour), in(time.Hour)}, gap{in(-time.Hour), in(-time.Hour), in(-2 * time.Minute)}
	for _, row := range []struct {
		reason    string
		step      time.Duration
		gap, want gap
	}{
		{"not set", clockTolerance, open, open},
		{"forward: it ends later", time.Hour, open, gap{open.From, open.Others, in(2 * time.Hour)}},
		{"back: when it began is unknown", -30 * time.Minute, open, gap{To: open.To}},
		{"it had ended", time.Minute, ended, ended},
	} {
		s := &state{gap: row.gap, wall: in(-row.step), mono: now}
		got := s.at(now)
		if got.gap != row.want || got.at(now).gap != row.want || got.stepped.IsZero() != (row.step == clockTolerance) || s.gap != row.gap {
			t.Errorf("%s: got %v, and %v from it, with a step at %v; want %v", row.reason, got.gap, got.at(now).gap, got.stepped, row.want)
		}
	}
	c := begun(t, newPath(t), served)
	check(t, onDisk(t, c.path).Stepped == 0, "without a step: the file has %v", onDisk(t, c.path).Stepped)
	set(c, time.Hour, open, time.Time{})
	for range 2 {
		a, err := c.Pods(t.Context())
		if len(a.Gaps) != 2 || a.Gaps[1].To.Before(in(2*time.Hour-time.Second)) || a.Gaps[1].To.After(in(150*time.Minute)) {
			t.Errorf("set forward by an hour: gaps %v, error %v", a.Gaps, err)
		}
	}
	check(t, !c.state.Load().stepped.IsZero(), "the step is not kept after the answer")
	set(c, time.Hour, open, time.Time{})
	if must(t, c.Add(entry("a", "10.0.0.2"))); onDisk(t, c.path).Gap.To.Before(in(2*time.Hour - time.Second)) {
		t.Errorf("set forward by an hour: the file has %v", onDisk(t, c.path).Gap)
	}
}

// After a step of the clock, timestamps of the last minutes don't show what a source could list: a reservation that is minutes old
// looks an hour old. So a Backfill closes no gap.
//
// Guard: [Checkpoint.Backfill] compares [backfill.before] with when the step was seen.
func TestHazard52ClockWasSet(t *testing.T) {
	ever := gap{To: time.Now().Add(time.Hour)}
	for _, row := range []struct {
		reason string
		ago    time.Duration // of the step; zero is none
		asOf   time.Time     // of the list
		closes bool
	}{
		{"no step", 0, time.Time{}, true},
		{"within the lag", DefaultLag - time.Minute, time.Time{}, false},
		{"before the lag", DefaultLag + time.Minute, time.Time{}, true},
		{"before the lag of a list by the monotonic clock", DefaultLag + time.Hour, time.Now().Add(-time.Minute), true},
		{"within the lag of such a list", DefaultLag + time.Minute, time.Now().Add(-2 * time.Minute), false},
		{"a list with another date", 24 * time.Hour, time.Now().Round(0), false},
		{"... and no step", 0, time.Now().Round(0), true},
	} {
		c, stepped := begun(t, newPath(t), served), time.Time{}
		if row.ago != 0 {
			stepped = time.Now().Add(-row.ago)
		}
		set(c, 0, ever, stepped)
		list, exact := runtimeOf("other"), runtimeOf("other")
		list.AsOf, exact.AsOf = row.asOf, time.Now()
		must(t, c.Backfill(t.Context(), answers(list, exact), by(nil)))
		from := c.state.Load().gap.From
		check(t, from.IsZero() != row.closes, "%s: the gap begins at %v", row.reason, from)
	}
	c := begun(t, newPath(t), served)
	set(c, 0, ever, time.Time{})
	must(t, c.Backfill(t.Context(), podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		set(c, -time.Minute, c.state.Load().gap, time.Time{})
		return runtimeOf("other"), nil
	}), by(nil)))
	check(t, c.state.Load().gap.From.IsZero(), "set back while it asks: the gap is %v", c.state.Load().gap)
}

// The clock is set between two starts, or while the agent runs, and the agent starts again and
// again. A version without a record has reserved an address by the old clock, and its container is
// not listed yet.
//
// Guard: [record.gapUntil] moves no end of a gap backwards, and [record.Stepped] outlives the agent.
func TestHazard52ClockIsSetAndTheAgentStartsAgain(t *testing.T) {
	const ago = 3 * time.Minute // the record was written
	written := time.Now().Add(-ago)
	began := gap{From: time.Unix(1, 0), Others: time.Unix(1, 0)}
	for _, row := range []struct {
		reason   string
		written  time.Time // by the clock of then
		gap      gap
		reserved time.Duration // ago, by the clock of now
		backfill bool          // another source is asked by the last start
	}{
		{"back", written.Add(8 * time.Hour), began, -6 * time.Hour, false},
		{"back while the agent ran", written, gap{To: written.Add(8 * time.Hour)}, -6 * time.Hour, false},
		{"forward, and a source does not list it yet", written.Add(-8 * time.Hour), began, 8*time.Hour + 2*time.Minute, true},
	} {
		for starts := 1; starts <= 3; starts++ {
			n, path := newNode(t), newPath(t)
			n.Reserve(network1, "10.0.0.3", "x", row.reserved)
			encoded(t, path, record{Written: row.written, SinceBoot: boottime.Since() - ago, Gap: row.gap})
			for range starts - 1 {
				c := opened(t, path, served)
				must(t, c.Add(entry("b", "10.0.0.4")), c.Close())
			}
			c := opened(t, path, served)
			if row.backfill {
				must(t, c.Backfill(t.Context(), answers(runtimeOf("other")), by(nil)))
			}
			n.keeps(fmt.Sprintf("%s, %d starts", row.reason, starts), c, "10.0.0.3")
		}
	}
}

// A version without a record ran for an hour. The record does not speak of reservations of that time, nor (93) of that of an ADD
// which that version ends after the next start. Leaks of that time are released if a runtime is asked, too, or after a Backfill.
//
// Guard: [record.gapUntil] begins a gap at [record.Written], and [Open] ends it after [Options.Lag]. In [backfill.ask] no source lists
// nothing.
func TestHazard51Rollback(t *testing.T) { rollback(t, -time.Hour) }

// TestHazard93ADDAcrossTheStart: see TestHazard51Rollback.
func TestHazard93ADDAcrossTheStart(t *testing.T) { rollback(t, DefaultLag-time.Minute) }

// rollback plays a rollback, with an ADD of the other version that reserves this long after the next start.
func rollback(t *testing.T, after time.Duration) {
	runtime := answers(runtimeOf("a", "meanwhile"))
	attachments := by(map[string]string{"a": "10.0.0.2", "meanwhile": "10.0.0.3"})
	all := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}
	withRuntime := all[:2]
	if after > 0 {
		withRuntime = all // too young for the runtime to tell, and for a Backfill
	}
	for _, row := range []struct {
		reason string
		source func(t *testing.T, c *Checkpoint) podsource.Source // for AtStartup
		left   []string
	}{
		{"the record alone", func(_ *testing.T, c *Checkpoint) podsource.Source { return c }, all},
		{"a reader of the record", func(t *testing.T, c *Checkpoint) podsource.Source { return reader(t, c.path, served) }, all},
		{"the record and the runtime", func(_ *testing.T, c *Checkpoint) podsource.Source { return podsource.Union(runtime, c) }, withRuntime},
		{"the record after a Backfill without a source, as beside a silent runtime", func(t *testing.T, c *Checkpoint) podsource.Source {
			must(t, c.Backfill(t.Context(), nil, nil))
			return c
		}, all},
		{"the record after a Backfill, closed and opened again", func(t *testing.T, c *Checkpoint) podsource.Source {
			must(t, c.Backfill(t.Context(), runtime, attachments), c.Close())
			return opened(t, c.path, served)
		}, withRuntime},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			n.Reserve(network1, "10.0.0.2", "a", 3*time.Hour)
			n.Reserve(network1, "10.0.0.3", "meanwhile", -after)
			n.Reserve(network1, "10.0.0.4", "leaked-meanwhile", -after)
			n.Reserve(network1, "10.0.0.5", "leaked-before", 3*time.Hour)
			closed, a := gap{at(1), at(1), at(0)}, entry("a", "10.0.0.2")
			path := newPath(t)
			encoded(t, path, record{Written: time.Now().Add(-2 * time.Hour), Gap: closed, Entries: []Entry{a}})
			n.keeps("after the hook", row.source(t, opened(t, path, served)), row.left...)
		})
	}
}

// A network is added to the agent, or to a reader of its record: containers of another server may be attached there since ever.
//
// Guard: [record.Networks].
func TestHazard51NetworkIsAdded(t *testing.T) {
	n, path := newNode(t, "live-in-the-added-network"), newPath(t)
	both := noLag
	both.Networks = []string{"other", network1}
	must(t, begun(t, path, Options{Networks: both.Networks[:1], Nested: true, Lag: 1}).Close())
	n.keeps("a reader", reader(t, path, both), "10.0.0.2")
	for range 2 {
		c := opened(t, path, both)
		before := string(read(t, path))
		must(t, c.Backfill(t.Context(), nil, nil)) // the runtime is silent
		check(t, string(read(t, path)) == before, "it is written though nothing has changed: a full disk would be an error")
		err := c.Backfill(t.Context(), answers(runtimeOf("b")), nil)
		check(t, err != nil, "a pod is listed, and there is no function for its attachments")
		n.keeps("a writer", c, "10.0.0.2")
		must(t, c.Close())
	}
	c := opened(t, path, both)
	must(t, c.Backfill(t.Context(), noPods, nil))
	n.keeps("after a Backfill", c)
}

// The writer writes until when the record was kept, with each change and when it is closed. The gap of the next writer begins
// then, and is kept for later ones.
//
// Guard: [Checkpoint.Close] writes the record, and [Checkpoint.commit] keeps [record.Gap].
func TestHazard51UntilWhen(t *testing.T) {
	path := newPath(t)
	c := begun(t, path, noLag, entry("a", "10.0.0.2"))
	kept := time.Now()
	must(t, c.Close())
	closed := time.Now()
	for range 3 {
		c := opened(t, path, noLag)
		g := c.state.Load().gap
		check(t, g.From.After(kept) && !g.From.After(closed), "gap %v; it was closed between %v and %v", g, kept, closed)
		check(t, !g.To.Before(closed) && !g.To.After(time.Now()), "gap %v; it was closed at %v", g, closed)
		must(t, c.Add(entry("b", "10.0.0.3")))
		a, err := reader(t, path, served).Pods(t.Context())
		must(t, err)
		same(t, "a reader's gaps", []podsource.Gap{{From: g.From}}, a.Gaps)
		must(t, c.Close())
	}
}

// A runtime lists only containers made through the CRI. The record does not speak of an address that a container of nerdctl got
// before the record began, however often the runtime is asked; nor if another source, of any container, was told of less than it.
//
// Guard: [Checkpoint.Backfill] closes the gap of containers that are no sandboxes up to where the list of a source of them begins.
func TestHazard49BackfillFromRuntime(t *testing.T) {
	sandbox, leaked, nerdctl := strings.Repeat("5a", 32), strings.Repeat("1e", 32), "default-"+strings.Repeat("ed", 32)
	n := newNode(t, sandbox, leaked, nerdctl)
	n.allow = nil
	cri, store := runtimeOf(sandbox), runtimeOf("other")
	cri.Names, store.Gaps = podsource.SandboxContainers, []podsource.Gap{{From: time.Now().Add(-2 * time.Hour)}}
	path := newPath(t)
	c := opened(t, path, noLag)
	fill := func(from podsource.Answer) error {
		return c.Backfill(t.Context(), answers(from), by(map[string]string{sandbox: "10.0.0.2"}))
	}
	must(t, fill(cri), fill(store))
	n.keeps("after both", c, "10.0.0.2", "10.0.0.4")
	must(t, fill(cri))
	check(t, errors.Is(fill(cri), fs.ErrExist), "a gap is left")
	must(t, c.Close())
	for _, source := range []podsource.Source{opened(t, path, noLag), reader(t, path, served)} {
		n.keeps("with the runtime", podsource.Union(source, answers(cri)), "10.0.0.2", "10.0.0.4")
		n.keeps("alone", source, "10.0.0.2", "10.0.0.4")
	}
}

// A rebooted node, a full pool, and the record alone: everything is freed in the hook.
//
// Guard: a record of another boot is empty, and the gap of [record.gapUntil] begins with this boot.
func TestHazard110RebootedNode(t *testing.T) {
	n := newNode(t)
	gctest.Uptime(t, boottime.Since())
	n.Reserve(network1, "10.0.0.2", "recorded", boottime.Since()+time.Hour)
	n.Reserve(network1, "10.0.0.3", "leaked", boottime.Since()+time.Hour)
	n.Reserve(network1, "10.0.0.4", "of-this-boot", boottime.Since()/2)
	path := newPath(t)
	write(t, path, string(written(t, ofBoot("before"), entry("recorded", "10.0.0.2"))))
	n.keeps("after the hook", opened(t, path, served), "10.0.0.4")
}

// TestBackfill checks the first file, or that there is none after an error.
func TestBackfill(t *testing.T) {
	attachments := func(p podsource.Pod) ([]Entry, error) {
		var out []Entry
		for _, id := range p.ContainerIDs {
			out = append(out, Entry{Key: key(id), IPs: p.IPs, UID: p.UID})
		}
		return out, nil
	}
	broken, errAny := errors.New("broken"), errors.New("any error")
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
		{"no source", nil, nil, []string{}, nil},
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
		e, ok := c.Get(key("a"))
		check(t, !ok || e.UID == "1", "%s: it is of pod %s", row.reason, e.UID)
	}
}

// Evicted pods, and finished pods that still list an address, are not recorded, and leave no gap; a starting pod leaves one only
// since its start.
//
// Guard: [finishedLongAgo] leaves out pods that have no attachment any more, and [backfill.add] returns no error for a pod without
// addresses and containers.
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

// TestBackfillLeavesOpen: the time in which the source may not list containers yet stays a gap, however often it is asked.
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
		{"a list of an hour ago", dated(ago(time.Hour)), ago(time.Hour + lag)},
		{"a list of a time in the future", dated(at.Add(lag / 2)), time.Time{}},
		{"a record with a gap", dated(time.Time{}, podsource.Gap{From: ago(time.Hour)},
			podsource.Gap{From: ago(2 * time.Hour), To: ago(time.Hour)}), ago(2 * time.Hour)},
	} {
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
			ends := !g.To.Before(at.Add(lag)) && !g.To.After(time.Now().Add(lag))
			check(t, g.Others.Equal(g.From) && ends, "%s: gap %v, want one that ends the lag after the first call", row.reason, g)
			right := g.From.Equal(row.from)
			if row.from.Equal(asked) {
				right = !g.From.Before(before.Add(-lag)) && !g.From.After(called.Add(-lag))
			}
			check(t, right, "%s: the gap begins at %v, want %v", row.reason, g.From, row.from)
		}
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
		{"any in the first", []podsource.Answer{in("n", any), in("m", sandboxes)}, sandboxes},
		{"any in the second", []podsource.Answer{in("n", 0), in("m", any)}, sandboxes},
		{"any in both", []podsource.Answer{in("n", any), in("m", any)}, any},
		{"any beside others", []podsource.Answer{in("n", any), in("n", sandboxes), in("m", 0), in("m", any)}, any},
		{"any in a supplementary one", []podsource.Answer{in("n", any), in("m", 0),
			{Networks: every, Names: any, Supplementary: true}}, sandboxes},
	} {
		f := backfill{attachmentsOf: by(nil), asked: time.Now(), listed: make(map[string]bool)}
		must(t, f.ask(t.Context(), answers(row.members...), []string{"n", "m"}))
		check(t, f.kind == row.want, "%s: got %v, want %v", row.reason, f.kind, row.want)
	}
}

// TestBackfillWhileServing: changes by the agent during a Backfill take precedence. A failed change and a removal before it have
// no effect on it.
func TestBackfillWhileServing(t *testing.T) {
	c := begun(t, newPath(t), served, entry("a", "10.0.0.2"))
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return runtimeOf("a", "removed", "new", "missed"), errors.Join(c.Add(entry("new", "10.0.0.3")), c.Remove(key("removed")))
	})
	ips := by(map[string]string{"a": "10.0.0.99", "removed": "10.0.0.98", "new": "10.0.0.99", "missed": "10.0.0.99"})
	must(t, c.Backfill(t.Context(), source, ips))
	same(t, "recorded", []string{"10.0.0.2", "10.0.0.3", "10.0.0.99"}, recorded(c))
	check(t, c.removed == nil, "removed keys that are left: %v", c.removed)
	must(t, c.Remove(key("removed")), c.Backfill(t.Context(), answers(runtimeOf("a", "new", "missed", "removed")), ips))
	same(t, "after a removal before it", []string{"10.0.0.2", "10.0.0.3", "10.0.0.98", "10.0.0.99"}, recorded(c))
}

// After a boot a runtime lists sandboxes of before it until kubelet removes them. They are recorded, without a namespace, and go when
// it does not list them any more. What the source may not list stays.
//
// Guard: the conditions of [maps.DeleteFunc] in [Checkpoint.Backfill].
func TestHazard110NoLongerListed(t *testing.T) {
	sandbox, now := strings.Repeat("5a", 32), time.Now()
	of := func(id string, at time.Time) Entry { return Entry{Key: key(id), Time: at} }
	attached := of(sandbox, now.Add(-time.Hour))
	attached.NetNS.Path = "/not/readable/here"
	for _, row := range []struct {
		reason  string
		entry   Entry
		stepped time.Time // when the clock was set
		list    string
		stays   bool
	}{
		{"not listed any more", of(sandbox, now.Add(-time.Hour)), time.Time{}, "other", false},
		{"listed", of(sandbox, now.Add(-time.Hour)), time.Time{}, sandbox, true},
		{"listed by its address", of(sandbox, now.Add(-time.Hour)), time.Time{}, "", true},
		{"it may not be listed yet", of(sandbox, now.Add(-DefaultLag+time.Minute)), time.Time{}, "other", true},
		{"the clock was set, so its time does not tell", of(sandbox, now.Add(-time.Hour)), now, "other", true},
		{"of nerdctl, which the runtime does not list", of("default-"+sandbox, now.Add(-time.Hour)), time.Time{}, "other", true},
		{"of this agent", attached, time.Time{}, "other", true},
	} {
		c := begun(t, newPath(t), served, row.entry)
		set(c, 0, c.state.Load().gap, row.stepped)
		cri := runtimeOf(row.list)
		cri.Names, cri.Pods[0].ContainerIDs = podsource.SandboxContainers, []string{"first", row.list}
		must(t, c.Backfill(t.Context(), answers(cri), func(p podsource.Pod) (of []Entry, err error) {
			if p.ContainerIDs[1] == "" { // of this pod it is known otherwise
				of = append(of, Entry{Key: key(sandbox)})
			}
			return of, nil
		}))
		got, stays := c.Get(row.entry.Key)
		check(t, stays == row.stays && (!stays || got.Time.Equal(row.entry.Time)), "%s: recorded: %t, %v", row.reason, stays, got)
	}
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
	now := c.state.Load().gap
	check(t, errors.Is(err, context.Canceled) && now.From.Equal(was.From), "the gap was %v and is %v; error %v", was, now, err)
	c = begun(t, newPath(t), noLag)
	before := string(read(t, c.path))
	err = c.Backfill(t.Context(), nil, nil)
	check(t, errors.Is(err, fs.ErrExist) && string(read(t, c.path)) == before, "got %v, want %v, and no change", err, fs.ErrExist)
	got, err := c.Pods(t.Context())
	check(t, err == nil && got.Gaps == nil && got.Note == "", "got %+v, %v, want no gaps", got, err)
	f := backfill{asked: at(5), before: at(3)} // a coarse clock shows the same time for a list as for the call
	f.notListedSince(at(5))
	check(t, f.before.Equal(at(3)), "a list of the time of the call counts as one of %v", f.before)
}

// TestAddBeforeBackfill: a record that began with one attachment would declare that there is no other, and the node's older pods
// would lose their addresses. So it is, too, after a Backfill that failed.
func TestAddBeforeBackfill(t *testing.T) {
	c := opened(t, newPath(t), served)
	for _, c.dirty = range []bool{false, true} {
		err := c.Add(entry("a", "10.0.0.2"))
		check(t, errors.Is(err, fs.ErrNotExist), "%v, want %v", err, fs.ErrNotExist)
		gone, err := c.Prune(t.Context())
		must(t, err, c.Remove(key("a")))
		got, err := c.Pods(t.Context())
		same(t, "Pods", podsource.Answer{Source: "checkpoint"}, got)
		check(t, errors.Is(err, podsource.ErrNotHere) && gone == nil, "Pods: %v; pruned: %v", err, gone)
	}
	must(t, c.Close())
	_, err := os.Lstat(c.path)
	check(t, errors.Is(err, fs.ErrNotExist), "a file was written: %v", err)
}
