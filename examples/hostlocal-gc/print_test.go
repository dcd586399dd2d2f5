// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The output fits a terminal, in colours and without them.
func TestTable(t *testing.T) {
	t.Chdir(mixedNode(t).dir)
	for _, screen := range []term.Screen{{}, {Width: 80, Colour: true}, {Width: 160}} {
		var out strings.Builder
		a := &app{stdout: &out, stderr: io.Discard, screen: screen}
		if status := a.run(t.Context(), []string{"plan", "--all", "--data-dir", "networks", "--source", "file:pods.json"}); status != statusDone {
			t.Errorf("exit status %d", status)
		}
		if got := strings.Contains(out.String(), "\x1b[35mleaked\x1b[0m"); got != screen.Colour || strings.Contains(out.String(), "\x1b") != got {
			t.Errorf("colours: %v, want %v:\n%q", got, screen.Colour, &out)
		}
		plain := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(out.String(), "")
		for line := range strings.Lines(plain) {
			if screen.Width > 0 && len(line) > screen.Width+1 {
				t.Errorf("%d columns on a terminal of %d: %q", len(line), screen.Width, line)
			}
		}
	}
}

// When a second pass is worthwhile. With a list that stays old it would release nothing more.
func TestNextCheck(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	source := func(name string, age time.Duration) gc.SourceReport {
		return gc.SourceReport{Name: name, AsOf: now.Add(-age)}
	}
	for _, row := range []struct {
		reason  string
		why     gc.Reason
		sources []gc.SourceReport
		want    string
	}{
		{"a list that is made anew", gc.TooYoung, []gc.SourceReport{source("kubelet", 59*time.Second), {Name: "netns"}},
			" A second pass is worthwhile in 7m."},
		{"the oldest counts", gc.TooYoung, []gc.SourceReport{source("file", time.Hour), source("checkpoint", 2*time.Hour), source("file", 0)},
			" Ages are taken at the date of checkpoint (2h ago): make it again before a second pass."},
		{"no memory", gc.UntrustedTimestamp, nil, " The wait of 1 reservation begins with a release, unless it has --memory none."},
	} {
		r := &gc.Report{Started: now, NextCheck: now.Add(7 * time.Minute), Sources: row.sources,
			Reservations: []gc.Entry{{Reservation: &hostlocal.Reservation{}, Reason: row.why}}}
		if got := new(app).nextCheck(r, true); got != row.want {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
}

// Text of other programs can't move the cursor or forge a row.
func TestHostileNames(t *testing.T) {
	n := mixedNode(t)
	n.put("pods.json", `[{"namespace":"a\nb","name":"\u001b[2J","ips":["10.244.1.2","10.244.1.99"]},{"uid":"\u001b]0;x","ips":["10.244.1.2"]}]`)
	for _, cmd := range []string{"plan", "plan --ip=10.244.1.2", "map"} {
		got := run(t, n.dir, nil, append(strings.Fields(cmd), "--data-dir", "networks", "--source", "file:pods.json")...)
		if got.status != statusDone || strings.ContainsAny(got.stdout, "\x1b\r") || strings.Contains(got.stdout, "\nb/") {
			t.Errorf("%s: exit status %d: %q", cmd, got.status, got.stdout)
		}
	}
}

// Of networks that could not be listed nothing is said but the error (R11).
func TestNothingListed(t *testing.T) {
	var stdout strings.Builder
	if err := (&app{stdout: &stdout}).print(&result{Report: gc.Report{Err: io.EOF}}, nil); err != nil || stdout.Len() > 0 {
		t.Errorf("%q, error %v", &stdout, err)
	}
}

// What the sources contributed takes one line, whatever an error contains, and those that were left out another one.
func TestSourcesLine(t *testing.T) {
	started := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	r := gc.Report{Started: started, Looks: 2, Sources: []gc.SourceReport{
		{Name: "netns"},
		{Name: "cnicache", Entries: 2, Note: "in podnet it does not count:\n10.0.0.2"},
		{Name: "checkpoint", Entries: 1, AsOf: started.Add(-90 * time.Second)},
		{Name: "kubelet", Entries: 30, AsOf: started.Add(-59 * time.Second)},
		{Name: "file", Entries: 2, AsOf: started.Add(2 * time.Hour)},
		{Name: "cri", Error: "it says \x1b[2J\nand more"},
		{Name: "kube", Note: "left out: Options.Config is not set"},
	}}
	want := "Sources, asked twice: netns (0 entries), cnicache (2 entries; in podnet it does not count:?10.0.0.2), checkpoint (1 entry, 1m30s old), kubelet (30 entries), " +
		"file (2 entries, dated 2h in the future), cri (no answer).\n" +
		"Left out: kube (there is no --kubeconfig)."
	if diff := cmp.Diff(want, strings.Join(diagnose.Sources(&r), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
