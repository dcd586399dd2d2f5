// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/textlog"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
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

// show returns the page of an agent that noted one report.
func show(t *testing.T, s settings, report gc.Report, err error) string {
	t.Helper()
	a := &agent{settings: &s, log: textlog.New(t.Output(), 0), board: newBoard()}
	if report.Network != "" {
		a.board.note(report, err)
	}
	var page strings.Builder
	if err := a.writePage(&page, report.Started.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

func entry(ip, id string, reason gc.Reason) gc.Entry {
	return gc.Entry{
		Reservation: &hostlocal.Reservation{IP: netip.MustParseAddr(ip), ContainerID: id, Owner: hostlocal.Owned},
		Reason:      reason, Verdict: reason.Verdict(),
	}
}

func TestPageSays(t *testing.T) {
	at := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	many := gc.Report{Network: "n", DataDir: t.TempDir(), Started: at}
	for i := range maxRows + 8 {
		many.Reservations = append(many.Reservations, entry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "c", gc.ContainerLive))
	}
	report := func(e ...gc.Entry) gc.Report {
		return gc.Report{Network: "n", DataDir: t.TempDir(), Started: at, Reservations: e}
	}
	failed := entry("10.0.0.2", "c", gc.ReleaseFailed)
	failed.Err = errors.New("unlink: read-only file system")
	doubled := report(entry("10.0.0.2", "c", gc.ContainerLive))
	two := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "two"}}
	doubled.Duplicates = []gc.Duplicate{{IP: netip.MustParseAddr("10.0.0.9"), Pods: []*podsource.Pod{{UID: "one"}, &two}}}
	doubled.Unreserved = []gc.Unreserved{{IP: netip.MustParseAddr("10.0.0.8"), Pod: &two}}
	for _, row := range []struct {
		reason string
		s      settings
		report gc.Report
		err    error
		want   []string
		not    string
	}{
		{"nothing yet", settings{}, gc.Report{}, nil, []string{"No pass has ended yet."}, "<section>"},
		{"an empty network", settings{}, report(), nil, []string{"0 reservations in 1 network.", "nothing reserved", "All that is reserved is in use."}, "<table>"},
		{
			"a dry run", settings{dryRun: true}, report(entry("10.0.0.2", "c", gc.Unowned)), nil,
			[]string{"1 reservation in 1 network: 1 leaked.", "Dry run: nothing is released.", "<h3>Leaked</h3>", "no live pod has its container or its address"}, "All that is reserved",
		},
		{
			"a refusal", settings{}, report(entry("10.0.0.2", "c", gc.NoAnswer)), errors.New("the source is away"),
			[]string{"1 not judged", "was refused, and released nothing.", "the source is away", "<summary>Not judged: 1</summary>"}, "1 failed",
		},
		{
			"a failure", settings{}, report(failed), failed.Err,
			[]string{"1 failed", "The last pass met an error.", "<em>unlink: read-only file system</em>", "<h3>Needs a person</h3>"}, "refused",
		},
		{"more than anybody reads", settings{}, many, nil, []string{"<summary>In use: 520</summary>", "8 more are in the JSON."}, "10.0.2.7<"},
		{
			"pods that share an address", settings{}, doubled, nil,
			[]string{"Several live pods have 10.0.0.9: one, ns/two.", "10.0.0.8 of ns/two has no reservation"}, "refused",
		},
		{"a configuration that is not there", settings{cniConf: []string{"none.conf"}}, report(), nil, []string{"<h2>Notes</h2>", "none.conf"}, "<table>"},
	} {
		page := show(t, row.s, row.report, row.err)
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
	e.Pod = &podsource.Pod{NamespacedName: types.NamespacedName{Namespace: v, Name: v}}
	report := gc.Report{Network: "n", DataDir: "none", Reservations: []gc.Entry{e},
		Unreserved: []gc.Unreserved{{IP: netip.MustParseAddr("10.0.0.3"), Pod: e.Pod}}}
	page := show(t, settings{node: v, dataDir: v, sources: []string{v}}, report, errors.New(v))
	var counts []string
	for _, mark := range []string{"<", ">", `"`, "'"} {
		counts = append(counts, fmt.Sprintf("%d %s", strings.Count(page, mark), mark))
	}
	return strings.Join(counts, ", ")
}
