// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// hashOfStyle computes the hash of the page's style element as a browser does.
func hashOfStyle(t *testing.T, page string) string {
	t.Helper()
	if n := strings.Count(page, "<style"); n != 1 {
		t.Errorf("%d style elements", n)
	}
	_, rest, _ := strings.Cut(page, "<style>")
	css, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(css))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// show returns the page of an agent after one report, or none.
func show(t *testing.T, o Options, report *gc.Report, err error) string {
	t.Helper()
	a := bare(o)
	now := time.Date(2025, 3, 1, 12, 1, 0, 0, time.UTC)
	if report != nil {
		confs, notes := readConfs(o.CNIConf)
		a.statuses.note(*report, err, confs, notes)
	}
	var page strings.Builder
	if err := a.writePage(&page, now); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

func entry(ip, id string, reason gc.Reason) gc.Entry {
	return gc.Entry{
		Reservation: &hostlocal.Reservation{Network: "n", IP: netip.MustParseAddr(ip), ContainerID: id, Owner: hostlocal.Owned},
		Reason:      reason, Verdict: reason.Verdict(),
	}
}

func TestPageSays(t *testing.T) {
	at := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	report := func(change func(*gc.Report), e ...gc.Entry) *gc.Report {
		r := &gc.Report{
			Networks: []string{"n"}, DataDir: t.TempDir(), Started: at, Looks: 1, Reservations: e,
			Sources: []gc.SourceReport{{Name: "cri", Entries: 3, Took: 20 * time.Millisecond}},
		}
		change(r)
		return r
	}
	const longPath = "/var/lib/cni/results/podnet-0123456789abcdef0123456789abcdef-eth0"
	conf := filepath.Join(t.TempDir(), "n.conf")
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/30"}}`, 0)
	asItIs := func(*gc.Report) {}
	held := entry("10.0.0.2", "c", gc.ContainerLive)
	held.Pod = &gc.Pod{Namespace: "ns", Name: "web", Source: "cri", Origin: "sandbox c"}
	other := entry("10.0.1.2", "c", gc.NetworkNotNamed)
	other.Network = "other"
	failed := entry("10.0.0.2", "c", gc.ReleaseFailed)
	failed.Err = errors.New("unlink: read-only file system")
	two := &gc.Pod{Namespace: "ns", Name: "two", Source: "netns", Origin: "/proc/7/ns/net"}
	three := &gc.Pod{Namespace: "ns", Name: "three", Source: "cri", Origin: "sandbox " + strings.Repeat("0123456789abcdef", 4)}
	conflict := entry("10.0.0.4", "c", gc.OtherContainer)
	conflict.Pod = three
	many := func(n int) func(*gc.Report) {
		return func(r *gc.Report) {
			for i := range n {
				r.Reservations = append(r.Reservations, entry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "c", gc.ContainerLive))
			}
		}
	}
	for _, row := range []struct {
		reason string
		o      Options
		report *gc.Report
		err    error
		want   []string
		not    string
	}{
		{"nothing yet", Options{}, nil, nil, []string{"No pass has ended yet."}, "<section>"},
		{
			"an empty network, without a question to any source", Options{}, report(func(r *gc.Report) { r.Sources = nil }), nil,
			[]string{"1 network, 0 reservations.", "Nothing is reserved.", "No source was asked"}, "<table",
		},
		{"the sources", Options{}, report(func(r *gc.Report) {
			r.Looks = 2
			r.Sources = append(r.Sources, gc.SourceReport{Name: "file", AsOf: at.Add(-time.Minute), Took: time.Second, Error: "half a list"})
		}), errAway, []string{
			"<p>Sources, asked twice: cri (3 entries), file (no answer).</p>",
			`<div class="alert"><b>UNKNOWN: no answer since the start: file.</b>`, "is its socket mounted",
		}, "No source was asked"},
		{
			"a pod, and where it was seen", Options{}, report(asItIs, held), nil,
			[]string{
				`<details><summary><span class="chip in-use">1 in-use</span> its container belongs to a live pod <small>R3</small> <span class="ip">10.0.0.2</span></summary>`,
				`<td class="pod" title="cri: sandbox c">ns/web</td>`,
			}, "alert",
		},
		{
			"a dry run", Options{Passes: gc.Options{DryRun: true}}, report(asItIs, entry("10.0.0.2", "c", gc.Unowned)), nil,
			[]string{"1 network, 1 reservation: 1 leaked.", "Dry run: nothing is released.", "no live pod has its container or its address"}, "<th>Pod</th>",
		},
		{
			"a dry run keeps the range full", Options{CNIConf: []string{conf}, Passes: gc.Options{DryRun: true}},
			report(asItIs, entry("10.0.0.2", "c", gc.Unowned)), nil,
			[]string{`<div class="alert live"><b>FULL: n: 1 of 1 addresses reserved, all leaked.</b>`,
				"<p>Remove --dry-run.</p>"}, "LEAKED",
		},
		{
			"a leak in a network that is only read", Options{}, report(asItIs, held, other), nil,
			[]string{"2 networks, 2 reservations", "<h2>other <small>only read", "its network is not among those to release in",
				`<div class="alert"><b>LEAKED: other: 1 address without an owner that these sources know, in a network that is not named.</b>`}, "alert live",
		},
		{
			"those with one reason are one line, and urgent ones come first", Options{},
			report(asItIs, held, entry("10.0.0.3", "k8s.io-c", gc.ForeignOwner), held, entry("10.0.0.5", "c", gc.TooYoung), held, held, failed), nil,
			[]string{
				`<details open><summary><span class="chip failed">1 failed</span>`, `<details><summary><span class="chip young">1 young`, `<details><summary><span class="chip foreign">1 foreign`,
				`<details><summary><span class="chip in-use">4 in-use</span> its container belongs to a live pod <small>R3</small> <span class="ip">10.0.0.2, 10.0.0.2, 10.0.0.2, …</span>`,
			}, "1 in-use",
		},
		{
			"a network's first ADD is yet to come", Options{}, report(func(r *gc.Report) { r.Missing = r.Networks }), nil,
			[]string{"No directory, so nothing is reserved."}, "alert",
		},
		{
			"the data directory is not there", Options{}, report(func(r *gc.Report) { r.DataDirMissing = true }), nil,
			[]string{`<div class="alert"><b>MISSING: there is no data directory `, "it is not mounted, or --data-dir is wrong."}, "alert live",
		},
		{
			"live pods have addresses, and there is no directory (hazard 63)", Options{}, report(func(r *gc.Report) {
				r.Missing, r.Unreserved = r.Networks, []gc.Claim{{IP: netip.MustParseAddr("10.0.0.8"), Pods: []*gc.Pod{two}}}
			}), nil,
			[]string{`<div class="alert live"><b>MISSING: n: there is no `, "n, while live pods have 1 address that is reserved nowhere; it holds no network.</b>", "Are --network and --data-dir right"}, "refused",
		},
		{
			"a refusal, and nothing was judged before", Options{}, report(asItIs, entry("10.0.0.2", "c", gc.SourceFailed)), errAway,
			[]string{": 1 not judged.", "was refused, and released nothing.</b>", "the source is away", `<details><summary><span class="chip not judged">1 not judged</span>`, "No pass has judged anything yet"}, "2 failed",
		},
		{
			"a failure", Options{}, report(asItIs, failed), failed.Err,
			[]string{"1 failed", "UNKNOWN: the last pass met an error.", "<em>unlink: read-only file system</em>"}, "All verdicts here",
		},
		{"as many as a node has as a rule", Options{}, report(many(250)), nil, []string{"250 in-use</span>", "<td class=\"ip\">10.0.0.249<"}, "in the JSON."},
		{"more than anybody reads", Options{}, report(many(5000)), nil, []string{"5000 in-use</span>", "4968 more are in the JSON."}, `<td class="ip">10.0.0.32<`},
		{
			"hazards for live pods", Options{}, report(func(r *gc.Report) {
				r.Duplicates = []gc.Claim{{IP: netip.MustParseAddr("10.0.0.9"), Pods: []*gc.Pod{{UID: "one", Source: "cnicache", Origin: longPath}, two}}}
				for i := range 10 {
					r.Unreserved = append(r.Unreserved, gc.Claim{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}), Pods: []*gc.Pod{two}})
				}
			}, held, conflict), nil,
			[]string{
				`<div class="alert live"><b>DUPLICATE: 1 address belongs to several live pods.</b>`, "<li>10.0.0.9: ns/two (netns: /proc/7/ns/net), one (cnicache: " + longPath + ")</li>", "Delete all pods of an address but one",
				`<div class="alert live"><b>UNRESERVED: 10 addresses of live pods are not reserved, so host-local may hand them out again.</b>`,
				"<li>10.0.0.17: ns/two (netns: /proc/7/ns/net)</li></ul><p>2 more are in the JSON.</p>",
				`<div class="alert live"><b>CONFLICT: n: 1 reservation is claimed by another pod than the owner, and kept.</b>`,
				"<li>10.0.0.4, of container c: its owner is not live, but a live pod with another container has its address: ns/three (cri: sandbox " + strings.Repeat("0123456789abcdef", 4) + ")</li>",
			}, "refused",
		},
		{"a configuration that is not there", Options{CNIConf: []string{"none.conf"}}, report(asItIs), nil,
			[]string{`<div class="alert"><b>CONFIG: `, "none.conf"}, "refused"},
	} {
		page := show(t, row.o, row.report, row.err)
		_, body, _ := strings.Cut(page, "</style>")
		from := 0
		for _, text := range row.want {
			if !strings.Contains(body, text) {
				t.Errorf("%s: %q is not in the page", row.reason, text)
			}
			if i := strings.Index(body, text); strings.HasPrefix(text, "<details") || strings.HasPrefix(text, "<div") {
				if i < from {
					t.Errorf("%s: %q precedes an expected text", row.reason, text)
				}
				from = i
			}
		}
		if strings.Contains(body, row.not) {
			t.Errorf("%s: %q is in the page", row.reason, row.not)
		}
	}
}

// A refused pass judged nothing, so the page keeps showing the previous verdicts, hazards first,
// with their time. The JSON is that of the last pass.
func TestLastVerdictsStay(t *testing.T) {
	at := time.Date(2025, 3, 1, 11, 30, 0, 0, time.UTC)
	networks := []string{"n"}
	good := gc.Report{
		Networks: networks, Started: at, Sources: []gc.SourceReport{{Name: "cri"}},
		Reservations: []gc.Entry{entry("10.0.0.2", "c", gc.TwoPods), entry("10.0.0.3", "c", gc.Unowned)},
		Unreserved:   []gc.Claim{{IP: netip.MustParseAddr("10.0.0.8"), Pods: []*gc.Pod{&gc.Pod{UID: "u", Name: "web"}}}},
	}
	unjudged := []gc.Entry{entry("10.0.0.2", "c", gc.SourceFailed), entry("10.0.0.3", "c", gc.SourceFailed), entry("10.0.0.4", "c", gc.SourceFailed)}
	refused := gc.Report{Networks: networks, Started: at.Add(30 * time.Minute), Reservations: unjudged, Sources: []gc.SourceReport{{Name: "cri", Error: "no such socket"}}}
	again := good
	again.Started, again.Unreserved, again.Reservations = refused.Started, nil, good.Reservations[1:]
	a := bare(Options{})
	page := func() string {
		var b strings.Builder
		if err := a.writePage(&b, at.Add(31*time.Minute)); err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(b.String(), "</style>")
		return body
	}
	check := func(when string, want, not []string) {
		t.Helper()
		got := page()
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s: %q is not in the page", when, text)
			}
		}
		for _, text := range not {
			if strings.Contains(got, text) {
				t.Errorf("%s: %q is in the page", when, text)
			}
		}
	}
	const (
		verdicts = "1 network, 2 reservations: 1 conflict, 1 leaked."
		since    = "All verdicts here are of the last pass that judged, 31m ago, at 2025-03-01 11:30:00 UTC."
		refusal  = "<b>UNKNOWN: the last pass was refused, and released nothing.</b>"
		hazard   = `<div class="alert live"><b>UNRESERVED: 1 address of a live pod is not reserved`
		drawn    = "<title>10.0.0.2: conflict"
	)
	a.statuses.note(good, nil, nil, nil)
	check("after a good pass", []string{verdicts, hazard, drawn}, []string{since, refusal, "ago: 1 network"})
	a.statuses.note(refused, errAway, nil, nil)
	check("after a refused one", []string{"31m ago: " + verdicts, hazard, drawn, refusal, "the source is away", since, "Last pass 1m ago"}, []string{"not judged", "10.0.0.4"})
	if body := get(a, debugPath).Body.String(); !strings.Contains(body, `"10.0.0.4"`) || strings.Contains(body, `"two-pods"`) {
		t.Errorf("the JSON is not of the last pass:\n%s", body)
	}
	a.statuses.note(gc.Report{Started: at.Add(30 * time.Minute)}, errors.New("listing reservations: stale handle"), nil, nil)
	check("after one that could not list", []string{"31m ago: " + verdicts, hazard, "<b>UNKNOWN: the last pass met an error.</b>", "stale handle", since}, []string{refusal})
	a.statuses.note(again, nil, nil, nil)
	check("after a good pass again", []string{"1 network, 1 reservation: 1 leaked."}, []string{since, hazard, "UNRESERVED"})
	failed := again
	failed.Reservations = []gc.Entry{entry("10.0.0.3", "c", gc.ReleaseFailed)}
	a.statuses.note(failed, errors.New("unlink: read-only file system"), nil, nil)
	check("after one that judged and could not release", []string{": 1 failed.", "<b>UNKNOWN: the last pass met an error.</b>"}, []string{since})
}

// Each verdict has a place and a colour.
func TestVerdictsHaveTheirPlaces(t *testing.T) {
	for _, v := range gc.Verdicts() {
		if urgency(v) < 0 {
			t.Errorf("verdict %s has no place", v)
		}
		if plain := v == gc.Changed || v == gc.Gone; !plain && !strings.Contains(pageStyle, ".chip."+v.String()) {
			t.Errorf("verdict %s has no colour", v)
		}
	}
}

// No value adds an element or an attribute.
func TestPageEscapes(t *testing.T) {
	want := marks(t, "x")
	for _, v := range []string{
		hostile, `"><img src=x onerror=alert(1)>`, "' onclick='x", "</style><script>", "</svg></td>", "<!--", "{{.Node}}", "\xff<", "a\u2028b", "&lt;", "\x00\r\n\t>",
	} {
		if got := marks(t, v); got != want {
			t.Errorf("%q makes of %s: %s", v, want, got)
		}
	}
}

// marks counts the delimiters of elements and attributes in a page that contains v everywhere.
func marks(t *testing.T, v string) string {
	t.Helper()
	e := entry("10.0.0.2", v, gc.TwoPods) // also a hazard
	e.IfName, e.Err = v, errors.New(v)
	e.Pod = &gc.Pod{Namespace: v, Name: v, Source: v, Origin: v}
	report := gc.Report{
		Networks: []string{"n"}, Missing: []string{"n"}, DataDir: "none", Reservations: []gc.Entry{e},
		Sources:    []gc.SourceReport{{Name: v, Error: v}},
		Unreserved: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.3"), Pods: []*gc.Pod{e.Pod}}},
		Duplicates: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.3"), Pods: []*gc.Pod{e.Pod, e.Pod}}},
	}
	page := show(t, Options{Node: v, DataDir: v}, &report, errors.New(v))
	var counts []string
	for _, mark := range []string{"<", ">", `"`, "'"} {
		counts = append(counts, fmt.Sprintf("%d %s", strings.Count(page, mark), mark))
	}
	return strings.Join(counts, ", ")
}

// The page shows the effective minimum age.
func TestMinimumAge(t *testing.T) {
	for _, row := range []struct {
		reason string
		opts   gc.Options
		want   time.Duration
	}{
		{"as the library has it", gc.Options{}, gc.DefaultMinAge},
		{"it follows from the other", gc.Options{RuntimeRequestTimeout: 5 * time.Minute}, 13 * time.Minute},
		{"it is given", gc.Options{RuntimeRequestTimeout: 5 * time.Minute, MinAge: 20 * time.Minute}, 20 * time.Minute},
	} {
		if got := minimumAge(&row.opts); got != row.want {
			t.Errorf("%s: %v, want %v", row.reason, got, row.want)
		}
	}
}
