// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// at is when the page's passes began, and the page is of a minute later.
var at = time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)

// pageOf returns an agent's page, without its style sheet.
func pageOf(t *testing.T, a *Agent) string {
	t.Helper()
	var page strings.Builder
	if err := a.writePage(&page, a.last.Load(), at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(page.String(), pageStyle, "", 1)
}

// What the page says of a pass, in this order.
func TestPageSays(t *testing.T) {
	dir, conf := t.TempDir(), filepath.Join(t.TempDir(), "n.conf")
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/30"}}`, 0)
	report := func(e ...gc.Entry) gc.Report {
		return gc.Report{Networks: []string{"n"}, DataDir: dir, Started: at, Looks: 1, Reservations: e,
			Sources: []gc.SourceReport{{Name: "cri", Entries: 3}}}
	}
	with := func(r gc.Report, change func(*gc.Report)) gc.Report { change(&r); return r }
	held, other := entry("10.0.0.2", "c", gc.ContainerLive), entry("10.0.1.2", "c", gc.NetworkNotNamed)
	held.Pod, other.Network = &gc.Pod{Namespace: "ns", Name: "web", Source: "cri", Origin: "sandbox c"}, "other"
	failed := entry("10.0.0.2", "c", gc.ReleaseFailed)
	failed.Err = errors.New("unlink: read-only file system")
	two := &gc.Pod{Namespace: "ns", Name: "two", Source: "netns", Origin: "/proc/7/ns/net"}
	claim := gc.Claim{IP: netip.MustParseAddr("10.0.0.8"), Pods: []*gc.Pod{two}}
	many := func(n int) (all []gc.Entry) {
		for i := range n {
			all = append(all, entry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "c", gc.ContainerLive))
		}
		return append(all, entry("10.1.0.0", "c", gc.TooYoung))
	}
	for _, row := range []struct {
		reason string
		o      Options
		report gc.Report
		err    error
		want   []string
		not    string
	}{
		{"nothing is reserved", Options{}, report(), nil, []string{
			"Last pass 1m ago, at 2025-03-01 12:00:00 UTC", "<p>0 reservations.</p>"}, "<table"},
		{"a source that has never answered", Options{}, with(report(), func(r *gc.Report) {
			r.Looks, r.Sources = 2, append(r.Sources, gc.SourceReport{Name: "file", Error: "half a list"})
		}), errAway, []string{`<div class="alert"><b>UNKNOWN: no answer since the start: file.</b>`, "is its socket mounted",
			"<p>Sources, asked twice: cri (3 entries), file (no answer).</p>"}, "alert live"},
		{"a pod, and where it was seen", Options{}, report(held), nil, []string{
			`<b class="in-use">in-use</b></td><td title="R3">its container belongs to a live pod</td>`,
			`, cri: sandbox c">ns/web</td>`}, "alert"},
		{"a dry run keeps the range full", Options{CNIConf: []string{conf}, Passes: gc.Options{DryRun: true}},
			report(entry("10.0.0.2", "c", gc.Unowned)), nil, []string{"Dry run: nothing is released.",
				`<div class="alert live"><b>FULL: n: 1 of 1 addresses reserved, all leaked.</b>`, "<p>1 reservation: 1 leaked.</p>"}, "LEAKED"},
		{"a leak in a network that is only read", Options{}, report(held, other), nil, []string{`<div class="alert"><b>LEAKED: other: `,
			"<h2>n</h2>", "<h2>other <small>only read", "its network is not among those to release in"}, "alert live"},
		{"those who need a person come first", Options{}, report(held, entry("10.0.0.3", "k8s.io-c", gc.ForeignOwner), held,
			entry("10.0.0.5", "c", gc.TooYoung), failed), failed.Err, []string{"UNKNOWN: the last pass met an error.",
			`<b class="failed">`, "<em>unlink: read-only file system</em>", `<b class="young">`, `<b class="foreign">`,
			`<b class="in-use">`}, "All verdicts here"},
		{"a network's first ADD is yet to come", Options{}, with(report(), func(r *gc.Report) { r.Missing = r.Networks }), nil,
			[]string{"<p>0 reservations, and there is no directory.</p>"}, "alert"},
		{"a refusal, and nothing was judged before", Options{}, report(entry("10.0.0.2", "c", gc.SourceFailed)), errAway, []string{
			"was refused, and released nothing.</b>", "the source is away", "No pass has judged anything yet", ": 1 not judged."}, "failed"},
		{"as many as a node has as a rule", Options{}, report(many(255)...), nil, []string{
			"255 in-use", `<td class="ip">10.1.0.0<`, ">10.0.0.254<"}, "JSON has"},
		{"more than anybody reads", Options{}, report(many(5000)...), nil, []string{"5000 in-use", `<td class="ip">10.1.0.0<`,
			">10.0.0.254<", "5001 in all: the JSON has them."}, `"ip">10.0.0.255<`},
		{"hazards for live pods", Options{}, with(report(entry("10.0.0.4", "c", gc.OtherContainer)), func(r *gc.Report) {
			r.Duplicates = []gc.Claim{{IP: claim.IP, Pods: []*gc.Pod{two, {UID: "one", Source: "cri", Origin: "sandbox one"}}}}
			r.Unreserved = make([]gc.Claim, 10)
			for i := range r.Unreserved {
				r.Unreserved[i] = claim
			}
		}), nil, []string{`<div class="alert live"><b>DUPLICATE: 1 address belongs`,
			"<li>10.0.0.8: ns/two (netns: /proc/7/ns/net), one (cri: sandbox one)</li>", "Delete all pods of an address but one",
			`<div class="alert live"><b>UNRESERVED: 10 addresses`,
			"<li>10 in all: the JSON has them.</li>", `<div class="alert live"><b>CONFLICT: n: 1 reservation`}, "refused"},
		{"a configuration that is not there", Options{CNIConf: []string{"none.conf"}}, report(), nil, []string{
			`<div class="alert"><b>CONFIG: `, "none.conf"}, "refused"},
	} {
		a := withoutPasses(row.o)
		if page := pageOf(t, a); !strings.Contains(page, "UNKNOWN: no pass has ended") || strings.Contains(page, "<section>") {
			t.Errorf("before the first pass:\n%s", page)
		}
		a.note(row.report, row.err, nil)
		page := pageOf(t, a)
		rest := page
		for _, text := range row.want {
			_, after, found := strings.Cut(rest, text)
			if !found {
				t.Errorf("%s: %q is not in the page, or precedes an expected text:\n%s", row.reason, text, rest)
			}
			rest = after
		}
		if strings.Contains(page, row.not) {
			t.Errorf("%s: %q is in the page", row.reason, row.not)
		}
	}
}

// A pass that judged nothing leaves the previous verdicts and hazards on the page, with their time. The JSON is that of
// the last pass.
func TestLastVerdictsStay(t *testing.T) {
	before := at.Add(-30 * time.Minute)
	good := gc.Report{Networks: []string{"n"}, Started: before, Sources: []gc.SourceReport{{Name: "cri"}},
		Reservations: []gc.Entry{entry("10.0.0.2", "c", gc.TwoPods), entry("10.0.0.3", "c", gc.Unowned)},
		Unreserved:   []gc.Claim{{IP: netip.MustParseAddr("10.0.0.8"), Pods: []*gc.Pod{{UID: "u", Name: "web"}}}}}
	refused, again, failed := good, good, good
	refused.Started, refused.Sources = at, []gc.SourceReport{{Name: "cri", Error: "no such socket"}}
	refused.Reservations, refused.Unreserved = []gc.Entry{entry("10.0.0.4", "c", gc.SourceFailed)}, nil
	again.Started, again.Unreserved, again.Reservations = at, nil, good.Reservations[1:]
	failed.Started, failed.Unreserved, failed.Reservations = at, nil, []gc.Entry{entry("10.0.0.3", "c", gc.ReleaseFailed)}
	a := withoutPasses(Options{})
	const (
		verdicts = "2 reservations: 1 conflict, 1 leaked."
		since    = "All verdicts here are of the last pass that judged, 31m ago, at 2025-03-01 11:30:00 UTC."
		refusal  = "<b>UNKNOWN: the last pass was refused, and released nothing.</b>"
		met      = "<b>UNKNOWN: the last pass met an error.</b>"
		hazard   = `<div class="alert live"><b>UNRESERVED: 1 address of a live pod is not reserved`
		drawn    = "<title>10.0.0.2: conflict"
	)
	all := []string{verdicts, since, refusal, met, hazard, drawn, "not judged", "10.0.0.4"}
	for _, row := range []struct {
		reason string
		report gc.Report
		err    error
		want   []string // of all
	}{
		{"a good pass", good, nil, []string{verdicts, hazard, drawn}},
		{"a refused one", refused, errAway, []string{verdicts, since, refusal, hazard, drawn}},
		{"one that could not list", gc.Report{Started: at}, errors.New("listing reservations: stale handle"),
			[]string{verdicts, since, met, hazard, drawn}},
		{"a good pass again", again, nil, nil},
		{"one that judged and could not release", failed, errors.New("unlink: read-only file system"), []string{met}},
	} {
		a.note(row.report, row.err, nil)
		page, got := pageOf(t, a), []string(nil)
		for _, text := range all {
			if strings.Contains(page, text) {
				got = append(got, text)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(row.want) || row.err != nil && !strings.Contains(page, row.err.Error()) {
			t.Errorf("after %s there is %q, want %q, and the error", row.reason, got, row.want)
		}
		if body := get(a, debugPath).Body.String(); strings.Contains(body, `"10.0.0.4"`) != (row.reason == "a refused one") {
			t.Errorf("after %s the JSON is not of the last pass:\n%s", row.reason, body)
		}
	}
}

// No value adds an element or an attribute.
func TestPageEscapes(t *testing.T) {
	want := ""
	for _, v := range []string{
		"x", `<script>alert("1&2")</script>`, `"><img src=x onerror=alert(1)>`, "' onclick='x", "</style><script>", "</svg></td>",
		"<!--", "{{.Node}}", "\xff<",
		"a\u2028b", "&lt;", "\x00\r\n\t>",
	} {
		e := entry("10.0.0.2", v, gc.TwoPods) // also a hazard
		e.IfName, e.Err, e.Reservation.Err = v, errors.New(v), errors.New(v)
		e.Pod = &gc.Pod{Namespace: v, Name: v, Source: v, Origin: v}
		a := withoutPasses(Options{Node: v, DataDir: v})
		a.note(gc.Report{
			Networks: []string{"n"}, Missing: []string{"n"}, DataDir: "none", Reservations: []gc.Entry{e},
			Sources:    []gc.SourceReport{{Name: v, Error: v}},
			Unreserved: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.3"), Pods: []*gc.Pod{e.Pod}}},
			Duplicates: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.3"), Pods: []*gc.Pod{e.Pod, e.Pod}}},
		}, errors.New(v), nil)
		page, got := pageOf(t, a), ""
		for _, mark := range []string{"<", ">", `"`, "'"} { // they delimit elements and attributes
			got += fmt.Sprintf("%d %s ", strings.Count(page, mark), mark)
		}
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%q makes of %s: %s", v, want, got)
		}
	}
}
