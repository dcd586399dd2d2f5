// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// hashOfStyle is what a browser computes of the page's one style element.
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

// show returns the page of an agent that noted one report, or none.
func show(t *testing.T, o Options, report *gc.Report, err error) string {
	t.Helper()
	a := &Agent{opts: o, statuses: newStatusStore()}
	now := time.Date(2025, 3, 1, 12, 1, 0, 0, time.UTC)
	if report != nil {
		a.statuses.note(*report, err)
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
			Networks: []gc.Network{{Name: "n"}}, DataDir: t.TempDir(), Started: at, Looks: 1, Reservations: e,
			Sources: []gc.SourceReport{{Name: "cri", Entries: 3, Took: 20 * time.Millisecond}},
		}
		change(r)
		return r
	}
	asItIs := func(*gc.Report) {}
	held := entry("10.0.0.2", "c", gc.ContainerLive)
	held.Pod = &gc.Pod{Namespace: "ns", Name: "web", From: "cri: sandbox c"}
	other := entry("10.0.1.2", "c", gc.NetworkNotNamed)
	other.Network = "other"
	failed := entry("10.0.0.2", "c", gc.ReleaseFailed)
	failed.Err = errors.New("unlink: read-only file system")
	away := fmt.Errorf("%w: the source is away", gc.ErrRefused)
	two := &gc.Pod{Namespace: "ns", Name: "two", From: "netns: /proc/7/ns/net"}
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
			"an empty network, of which no source was asked", Options{}, report(func(r *gc.Report) { r.Sources = nil }), nil,
			[]string{"0 reservations in 1 network.", "nothing reserved", "All that is reserved is in use.", "No source was asked"}, "<table>",
		},
		{"the sources", Options{}, report(func(r *gc.Report) {
			r.Looks = 2
			r.Sources = append(r.Sources, gc.SourceReport{Name: "file", AsOf: at.Add(-time.Minute), Took: time.Second, Error: "half a list"})
		}), away, []string{
			"<td>cri</td><td>3</td><td>when it was asked</td><td>20ms</td>",
			"<td>file<br><em>half a list</em></td><td>0</td><td>2m ago</td><td>1s</td>", "asked the sources twice",
		}, "No source was asked"},
		{
			"a pod, and where it was seen", Options{}, report(asItIs, held), nil,
			[]string{`<td class="pod" title="cri: sandbox c">ns/web</td>`, "its container belongs to a live pod"}, "Directories are missing",
		},
		{
			"a dry run", Options{Passes: gc.Options{DryRun: true}}, report(asItIs, entry("10.0.0.2", "c", gc.Unowned)), nil,
			[]string{"1 reservation in 1 network: 1 leaked.", "Dry run: nothing is released.", "<h3>Leaked</h3>", "no live pod has its container or its address"}, "All that is reserved",
		},
		{
			"a leak in a network that is only read", Options{}, report(asItIs, held, other), nil,
			[]string{"2 reservations in 2 networks", "<h2>other <small>only read", "its network is not among those to release in"}, "Directories are missing",
		},
		{
			"owners that no source could know", Options{}, report(asItIs, held, entry("10.0.0.3", "k8s.io-c", gc.ForeignOwner)), nil,
			[]string{"1 foreign", "<h3>Foreign</h3>", "no source here knows containers with such an ID"}, "<h3>Leaked</h3>",
		},
		{
			"a network's first ADD is yet to come", Options{}, report(func(r *gc.Report) { r.Networks[0].Missing = true }), nil,
			[]string{"<li>no directory</li>"}, "Directories are missing",
		},
		{
			"live pods have addresses, and there is no directory (hazard 63)", Options{}, report(func(r *gc.Report) {
				r.Networks[0].Missing, r.Unreserved = true, []gc.Unreserved{{IP: netip.MustParseAddr("10.0.0.8"), Pod: two}}
			}), nil,
			[]string{"Directories are missing.", "n, while live pods have 1 address that no network has reserved"}, "refused",
		},
		{
			"a refusal", Options{}, report(asItIs, entry("10.0.0.2", "c", gc.SourceFailed), entry("10.0.0.3", "c", gc.NoPods)), away,
			[]string{"2 not judged", "was refused, and released nothing.", "the source is away", "<summary>Not judged: 2</summary>"}, "2 failed",
		},
		{
			"a failure", Options{}, report(asItIs, failed), failed.Err,
			[]string{"1 failed", "The last pass met an error.", "<em>unlink: read-only file system</em>", "<h3>Needs a person</h3>"}, "refused",
		},
		{"more than anybody reads", Options{}, report(func(r *gc.Report) {
			for i := range maxRows + 8 {
				r.Reservations = append(r.Reservations, entry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "c", gc.ContainerLive))
			}
		}), nil, []string{"<summary>In use: 520</summary>", "8 more are in the JSON."}, "10.0.2.7<"},
		{
			"pods that share an address", Options{}, report(func(r *gc.Report) {
				r.Duplicates = []gc.Duplicate{{IP: netip.MustParseAddr("10.0.0.9"), Pods: []*gc.Pod{{UID: "one"}, two}}}
				r.Unreserved = []gc.Unreserved{{IP: netip.MustParseAddr("10.0.0.8"), Pod: two}}
			}, held), nil,
			[]string{"Several live pods have 10.0.0.9: one, ns/two (netns: /proc/7/ns/net).", "10.0.0.8 of ns/two (netns: /proc/7/ns/net) has no reservation"}, "refused",
		},
		{"a configuration that is not there", Options{CNIConf: []string{"none.conf"}}, report(asItIs), nil, []string{"<h2>Notes</h2>", "none.conf"}, "refused"},
	} {
		page := show(t, row.o, row.report, row.err)
		for _, text := range row.want {
			if !strings.Contains(page, text) {
				t.Errorf("%s: %q is not in the page", row.reason, text)
			}
		}
		_, body, _ := strings.Cut(page, "</style>")
		if row.not == "10.0.2.7<" { // the picture has it
			_, body, _ = strings.Cut(body, "</svg>")
		}
		if strings.Contains(body, row.not) {
			t.Errorf("%s: %q is in the page", row.reason, row.not)
		}
	}
}

// Each verdict has its place among the others, and a colour.
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

// No value, wherever it comes from, adds an element or an attribute.
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

// marks counts what makes elements and attributes in a page that has v in all
// places.
func marks(t *testing.T, v string) string {
	t.Helper()
	e := entry("10.0.0.2", v, gc.PodStarting)
	e.IfName, e.Err = v, errors.New(v)
	e.Pod = &gc.Pod{Namespace: v, Name: v, From: v}
	report := gc.Report{
		Networks: []gc.Network{{Name: "n", Missing: true}}, DataDir: "none", Reservations: []gc.Entry{e},
		Sources:    []gc.SourceReport{{Name: v, Error: v}},
		Unreserved: []gc.Unreserved{{IP: netip.MustParseAddr("10.0.0.3"), Pod: e.Pod}},
	}
	page := show(t, Options{Node: v, DataDir: v}, &report, errors.New(v))
	var counts []string
	for _, mark := range []string{"<", ">", `"`, "'"} {
		counts = append(counts, fmt.Sprintf("%d %s", strings.Count(page, mark), mark))
	}
	return strings.Join(counts, ", ")
}

// The minimum age that the page shows is the one that counts.
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
