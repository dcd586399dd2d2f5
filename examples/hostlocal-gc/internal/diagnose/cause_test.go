// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// IDs of sandboxes, and of other containers.
var (
	owned, others = strings.Repeat("1", 64), strings.Repeat("2", 64)
	byNerdctl     = "default-" + owned
	byNomad       = "5f1bb0a4-2f0b-5d5a-b1a4-8c1f5e1e0b01"
)

// A record is a file of libcni's cache.
type record struct {
	network, id, netns string
	made               time.Time
	damaged            bool
}

// results makes a directory with libcni's cache.
func results(t *testing.T, records ...record) string {
	t.Helper()
	dir := t.TempDir()
	for _, r := range records {
		text := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"networkName":%q,"netns":%q,"ifName":"eth0"}`, r.id, r.network, r.netns)
		if r.damaged {
			text = text[:20]
		}
		cnitest.Write(t, filepath.Join(dir, r.network+"-"+r.id+"-eth0"), text, time.Since(r.made))
	}
	return dir
}

// inquiry reads one cache on a node where only the namespace at "live" is there, and nobody knows about "unsure".
func inquiry(dir string) *Inquiry {
	q := NewInquiry([]string{"cnicache:" + dir})
	q.alive = func(context.Context) (living, error) {
		return func(path string, _ time.Time) (bool, bool) {
			return path == "live" || path == "unsure", path != "unsure"
		}, nil
	}
	return q
}

var reserved = time.Now().Add(-time.Hour).Round(0)

func leakedOf(id string, why gc.Reason) gc.Entry {
	return gc.Entry{Verdict: why.Verdict(), Reason: why, Reservation: &hostlocal.Reservation{
		Network: "podnet", IP: netip.MustParseAddr("10.1.0.2"), ContainerID: id, IfName: "eth0", ReservedAt: reserved, Owner: hostlocal.Owned,
	}}
}

// at replaces the time of the boot.
func at(t *testing.T, boot time.Time) {
	t.Helper()
	before := Booted
	t.Cleanup(func() { Booted = before })
	Booted = func() time.Time { return boot }
}

func TestCause(t *testing.T) {
	earlier, later := reserved.Add(-time.Minute), reserved.Add(time.Minute)
	old := record{"podnet", others, "gone", earlier, false}
	own := record{"podnet", owned, "gone", later, false}
	with := func(r record, change func(*record)) record { change(&r); return r }
	in := func(netns string) []record { return []record{with(own, func(r *record) { r.netns = netns }), old} }
	younger := with(old, func(r *record) { r.made = later })
	torn := with(own, func(r *record) { r.damaged = true })
	elsewhere := func(r *record) { r.network = "storage" }
	cri := func(err string) func(*Inquiry, *gc.Report) {
		return func(_ *Inquiry, r *gc.Report) { r.Sources = []gc.SourceReport{{Name: "cri", Error: err}} }
	}
	live := func(at time.Time, pod *gc.Pod) func(*Inquiry, *gc.Report) { // without an entry
		e := leakedOf(byNomad, gc.ContainerLive)
		e.ReservedAt, e.Pod = at, pod
		return func(_ *Inquiry, r *gc.Report) { r.Reservations = append(r.Reservations, e) }
	}
	for _, row := range []struct {
		reason string
		id     string
		boot   time.Time
		cache  []record
		change func(*Inquiry, *gc.Report)
		want   Cause
	}{
		{"its entry is there, and its namespace is gone", owned, earlier, []record{own}, nil, NoDEL},
		{"its namespace lives, so somebody forgot a container", owned, earlier, in("live"), nil, UnknownCause},
		{"nobody knows whether its namespace lives", owned, earlier, in("unsure"), nil, UnknownCause},
		{"its entry names no namespace", owned, earlier, in(""), nil, UnknownCause},
		{"the kernel can't be asked", owned, earlier, []record{own}, func(q *Inquiry, _ *gc.Report) {
			q.alive = func(context.Context) (living, error) { return nil, errors.New("no hostPID") }
		}, UnknownCause},
		{"it has an entry in another network only, and this one's are older", owned, earlier, []record{with(own, elsewhere), old}, nil, NoEntry},
		{"the cache is younger, and may have been wiped", owned, earlier, []record{younger}, nil, UnknownCause},
		{"the cache has no owner of a reservation, so it may be of a runtime that was here once", owned, earlier, []record{old},
			func(_ *Inquiry, r *gc.Report) { r.Reservations = r.Reservations[:1] }, UnknownCause},
		{"the network has no entry, so this may be another's cache", owned, earlier, []record{with(old, elsewhere)}, nil, UnknownCause},
		{"there is no cache", owned, earlier, nil, func(q *Inquiry, _ *gc.Report) { q.dirs = []string{"/nowhere"} }, UnknownCause},
		{"the cache can't be read", owned, earlier, []record{own},
			func(q *Inquiry, _ *gc.Report) { q.dirs = append(q.dirs, "relative") }, UnknownCause},
		{"its entry is torn", owned, earlier, []record{torn}, nil, Torn},
		{"the same, from before the boot: the power failed", owned, later, []record{torn}, nil, Torn},
		{"the entry of its other network is torn", owned, earlier, []record{with(torn, elsewhere)}, nil, UnknownCause},
		{"its own is whole, and its namespace gone", owned, earlier, []record{own, with(torn, elsewhere)}, nil, NoDEL},
		{"its file names no interface, so its entry may be another's", owned, earlier, []record{own},
			func(_ *Inquiry, r *gc.Report) { r.Reservations[0].IfName = "" }, UnknownCause},
		{"it is from before the boot, and the cache, which is older, has none", owned, later, []record{old}, nil, UnknownCause},
		{"the same, and the cache is younger", owned, later, []record{younger}, nil, Reboot},
		{"a live container has no entry either, so the cache is not whole", owned, earlier, []record{old}, live(reserved, nil), UnknownCause},
		{"that of an ADD may be yet to come", owned, earlier, []record{old}, live(time.Now(), nil), NoEntry},
		{"the cache has none of a live container, but of another leak", owned, earlier, []record{old},
			func(_ *Inquiry, r *gc.Report) { r.Reservations[1] = leakedOf(others, gc.NetworkNotNamed) }, UnknownCause},
		{"its file is empty", "", earlier, []record{old}, func(_ *Inquiry, r *gc.Report) { r.Reservations[0].Owner = hostlocal.Empty }, Torn},
		{"it is from before the boot", owned, later, []record{own}, nil, Reboot},
		{"the same without a cache", owned, later, nil, nil, Reboot},
		{"a live container seems to be, too, so the clock was set since", owned, later, nil, live(reserved, nil), UnknownCause},
		{"its sandbox is, which is not ready", owned, later, nil, live(reserved, &gc.Pod{NotRunning: true}), Reboot},
		{"the clocks differ by less than they may", owned, reserved.Add(time.Second / 2), nil, nil, UnknownCause},
		{"the boot is not known", owned, time.Time{}, []record{old}, nil, NoEntry},
		{"nerdctl's container is not of the runtime that is asked", byNerdctl, earlier, nil, cri(""), OtherRuntime},
		{"that did not answer", byNerdctl, earlier, nil, cri("away"), UnknownCause},
		{"a sandbox may be of the runtime that is asked", owned, earlier, nil, cri(""), UnknownCause},
		{"no runtime answered, and nobody knows whose cache has others' containers", byNomad, earlier, []record{old}, nil, UnknownCause},
		{"nerdctl's entry says more", byNerdctl, earlier, []record{with(own, func(r *record) { r.id = byNerdctl })}, cri(""), NoDEL},
	} {
		at(t, row.boot)
		q, r := inquiry(results(t, row.cache...)), gc.Report{Reservations: []gc.Entry{leakedOf(row.id, gc.Unowned)}}
		if n := len(row.cache); n > 0 { // one that lives has an entry
			r.Reservations = append(r.Reservations, leakedOf(row.cache[n-1].id, gc.ContainerLive))
			r.Reservations[1].ReservedAt = time.Now()
		}
		if row.change != nil {
			row.change(q, &r)
		}
		causes, found := q.Find(t.Context(), &r, nil)
		if got := causes.Of(&r.Reservations[0]); got != row.want || len(found) != 1 {
			t.Errorf("%s: %q of %d leaks, want %q of 1", row.reason, got, len(found), row.want)
		}
	}
}

// A leak is found once, and keeps its cause while its reservation exists. What is no leak has none.
func TestCausesOfPasses(t *testing.T) {
	at(t, time.Time{})
	dir := results(t, record{"podnet", owned, "gone", reserved, false}, record{"storage", owned, "gone", reserved, false})
	q, looks := inquiry(dir), 0
	answer := q.alive
	q.alive = func(ctx context.Context) (living, error) {
		looks++
		return answer(ctx)
	}
	var known Causes
	for _, row := range []struct {
		reason string
		e      gc.Entry
		want   Cause
		found  int
	}{
		{"it lives", leakedOf(owned, gc.ContainerLive), "", 0},
		{"it is in a network that is only read", leakedOf(owned, gc.NetworkNotNamed), "", 0},
		{"it leaked, and a look still hangs", leakedOf(owned, gc.NotTried), UnknownCause, 0},
		{"it leaked", leakedOf(owned, gc.NotTried), NoDEL, 1},
		{"it is still there", leakedOf(owned, gc.Unowned), NoDEL, 0},
		{"a source fails to speak of it", leakedOf(owned, gc.NoSourceForNetwork), "", 0},
		{"it can't be released", leakedOf(owned, gc.ReleaseFailed), NoDEL, 0},
		{"it is released", leakedOf(owned, gc.ReleasedLeak), NoDEL, 0},
		{"another one has its address", leakedOf(others, gc.ReleaseFailed), UnknownCause, 1},
		{"and another, which the same pass releases", leakedOf(owned, gc.ReleasedLeak), UnknownCause, 1},
	} {
		for _, away := range []gc.Report{{Networks: []string{"podnet"}, Missing: []string{"podnet"}}, {}} {
			known, _ = q.Find(t.Context(), &away, known) // what can't be read is not forgotten
		}
		r := gc.Report{Networks: []string{"podnet"}, Reservations: []gc.Entry{row.e}}
		var found []*gc.Entry
		looks = 0
		q.guard.busy.Store(strings.HasSuffix(row.reason, "hangs"))
		known, found = q.Find(t.Context(), &r, known)
		if got := known.Of(&row.e); got != row.want || len(found) != row.found || looks != row.found {
			t.Errorf("%s: %q, found %d in %d looks, want %q, %d", row.reason, got, len(found), looks, row.want, row.found)
		}
		if len(found) > 0 { // what was read once is not needed again
			_ = os.Remove(filepath.Join(dir, "podnet-"+owned+"-eth0"))
		}
	}
	entries := []*gc.Entry{{}, {}, {}}
	all := make(Causes)
	for i, cause := range []Cause{UnknownCause, Reboot, Reboot} {
		e := leakedOf(fmt.Sprint(i), gc.Unowned)
		entries[i], all[leakOf(&e)] = &e, cause
	}
	if got, want := all.Line(entries), "Causes: 2 reboot (from before the boot), 1 unknown."; got != want || all.Line(entries[:1]) != "" {
		t.Errorf("%q, want %q, and nothing for one that is unknown: %q", got, want, all.Line(entries[:1]))
	}
}

// The cache is that of the sources, and else those of containerd and Multus.
func TestInquiryOfSources(t *testing.T) {
	const usual = "/var/lib/cni/results"
	for specs, want := range map[string]string{
		"": usual + " /var/lib/cni/multus/results", "cri netns": usual + " /var/lib/cni/multus/results",
		"cri cnicache": usual, "cnicache:/a cnicache": "/a " + usual,
	} {
		if got := strings.Join(NewInquiry(strings.Fields(specs)).dirs, " "); got != want {
			t.Errorf("with %q: %s, want %s", specs, got, want)
		}
	}
}
