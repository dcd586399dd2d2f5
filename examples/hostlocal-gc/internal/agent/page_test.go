// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
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

// The page of a pass that has something of everything is testdata/page.html. A pass that judged nothing leaves the
// previous verdicts and hazards on it, with their time. The JSON is that of the last pass.
func TestPage(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "n.conf")
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/27"}}`, 0)
	a := withoutPasses(Options{Node: "node-1", DataDir: "/d", CNIConf: []string{conf}, Passes: gc.Options{DryRun: true}})
	a.started = at.Add(-time.Hour)
	if page := pageOf(t, a); !strings.Contains(page, "UNKNOWN: no pass has ended yet") || strings.Contains(page, "<section>") {
		t.Errorf("before the first pass:\n%s", page)
	}
	two := &gc.Pod{Namespace: "ns", Name: "two", Source: "netns", Origin: "/proc/7/ns/net"}
	r := gc.Report{Networks: []string{"n"}, DataDir: "none", Started: at, Looks: 2,
		Sources:    []gc.SourceReport{{Name: "cri", Entries: 3}, {Name: "file", Error: "half a list"}},
		Duplicates: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.8"), Pods: []*gc.Pod{two, {UID: "one", Source: "cri", Origin: "sandbox one"}}}}}
	for i := range 10 {
		r.Unreserved = append(r.Unreserved, gc.Claim{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(20 + i)}), Pods: []*gc.Pod{two}})
	}
	for i, why := range []gc.Reason{
		gc.ContainerLive, gc.TooYoung, gc.PodStarting, gc.ForeignOwner, gc.Unowned, gc.FileChanged, gc.ReleasedLeak,
		gc.FileGone, gc.OtherContainer, gc.OwnerMalformed, gc.ReleaseFailed, gc.Unowned, gc.Unowned, gc.NetworkNotNamed,
	} {
		e := entry(fmt.Sprintf("10.0.0.%d", i+2), sandbox("c"), why)
		e.ReservedAt = at.Add(-time.Minute)
		r.Reservations = append(r.Reservations, e)
	}
	r.Reservations[0].Pod, r.Reservations[10].Err = two, errors.New("unlink: read-only file system")
	r.Reservations[9].Owner, r.Reservations[13].Network = hostlocal.Empty, "other"
	a.note(r, nil, nil)
	golden, err := os.ReadFile(filepath.Join("testdata", "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	page := pageOf(t, a)
	if diff := cmp.Diff(string(golden), page); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	judged := page[strings.Index(page, "\n<section>"):]
	refused := gc.Report{Networks: []string{"n"}, DataDir: "none", Started: at.Add(30 * time.Minute)}
	failed := refused
	refused.Sources = r.Sources
	refused.Reservations = []gc.Entry{entry("10.0.0.3", "c", gc.SourceFailed)}
	failed.Reservations = []gc.Entry{entry("10.0.0.3", "c", gc.ReleaseFailed)}
	for _, row := range []struct {
		reason string
		report gc.Report
		err    error
		stale  bool
		says   string
	}{
		{"a refused pass", refused, errAway, true, "<b>UNKNOWN: the last pass was refused, and released nothing: no answer of file.</b>"},
		{"one that could not list", gc.Report{Started: at, DataDir: "none"}, errors.New("stale handle"), true,
			"<b>UNKNOWN: the last pass met an error.</b>"},
		{"one that judged and could not release", failed, errors.New("read-only"), false, "<b>UNKNOWN: the last pass met an error.</b>"},
		{"a good one", r, nil, false, "UNRESERVED"},
	} {
		a.note(row.report, row.err, nil)
		page := pageOf(t, a)
		const since = "All verdicts here are of the last pass that judged, 1m ago, at 2025-03-01 12:00:00 UTC."
		stays := strings.HasSuffix(page, judged) && strings.Contains(page, "<b>UNRESERVED: 10 addresses")
		if strings.Contains(page, since) != row.stale || stays != (row.stale || row.err == nil) || !strings.Contains(page, row.says) ||
			row.err != nil && !strings.Contains(page, row.err.Error()) {
			t.Errorf("after %s the page is\n%s", row.reason, page)
		}
		body, ips := get(a, debugPath).Body.String(), len(row.report.Reservations)+len(row.report.Unreserved)+len(row.report.Duplicates)
		valid(t, body)
		if strings.Count(body, `"ip": `) != ips {
			t.Errorf("after %s the JSON is not of the last pass:\n%s", row.reason, body)
		}
	}
	for n, want := range map[int]string{
		0: "<p>0 reservations, and there is no directory.</p>", 255: ">10.0.0.254<", 5000: "5001 in all: the JSON has them.",
	} {
		r := gc.Report{Networks: []string{"n"}, Started: at, Missing: []string{"n"}[min(n, 1):]}
		for i := range n {
			r.Reservations = append(r.Reservations, entry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "c", gc.ContainerLive))
		}
		if n > 0 { // those who need a person come first
			r.Reservations = append(r.Reservations, entry("10.1.0.0", "c", gc.TooYoung))
		}
		a.note(r, nil, nil)
		page := pageOf(t, a)
		got, first := strings.Count(page, `<td class="ip">`), strings.Contains(page, `"ip">10.1.0.0<`)
		if got != min(len(r.Reservations), 256) || first != (n > 0) || !strings.Contains(page, want) {
			t.Errorf("of %d addresses the page has %d rows:\n%s", n, got, page)
		}
	}
	fresh := withoutPasses(Options{})
	fresh.note(refused, errAway, nil)
	if page := pageOf(t, fresh); !strings.Contains(page, "No pass has judged anything yet") || !strings.Contains(page, ": 1 not judged.") {
		t.Errorf("a refusal, and nothing was judged before:\n%s", page)
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
		e.IfName, e.Err = v, errors.New(v)
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
