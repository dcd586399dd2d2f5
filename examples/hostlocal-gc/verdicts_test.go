// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// every is a network with one reservation for each verdict that one pass and a file of pods can
// give, and the pods for it.
func every(t *testing.T) (*node, *podNetwork) {
	n := newNode(t)
	nw := n.network("podnet", "10.244.1.0/24")
	const old = 9 * time.Hour
	nw.add(sandbox("running"), old)                 // .2
	nw.add(sandbox("old"), old)                     // .3
	nw.add(sandbox("mysql before"), old)            // .4
	nw.add(sandbox("garbage"), old)                 // .5
	nw.add(sandbox("empty"), old)                   // .6
	nw.add(sandbox("may be creating"), 2*time.Hour) // .7
	nw.add(sandbox("fresh"), 0)                     // .8
	nw.write("10.244.1.5", "one\ntwo\nthree\n", old)
	nw.write("10.244.1.6", "", old)
	n.pods("pods.json",
		pod{Namespace: "a", Name: "running", UID: "1", ContainerIDs: []string{sandbox("running")}},
		pod{Namespace: "a", Name: "mysql", UID: "2", ContainerIDs: []string{sandbox("mysql")}, IPs: []string{"10.244.1.4"}},
		pod{Namespace: "a", Name: "creating", UID: "3", StartedAt: ago(3 * time.Hour)},
	)
	return n, nw
}

var everyVerdict = map[string]string{
	"10.244.1.2": "in-use", "10.244.1.3": "leaked", "10.244.1.4": "conflict", "10.244.1.5": "malformed",
	"10.244.1.6": "leaked", "10.244.1.7": "starting", "10.244.1.8": "young",
}

func TestVerdicts(t *testing.T) {
	n, nw := every(t)
	flags := []string{"--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json", "-o", "json"}

	for _, cmd := range []string{"list", "plan"} {
		got := run(t, n.dir, nil, append([]string{cmd}, flags...)...)
		if diff := cmp.Diff(everyVerdict, verdicts(t, got.stdout)); diff != "" || got.status != statusDone {
			t.Errorf("%s: exit status %d, verdicts (-want +got):\n%s", cmd, got.status, diff)
		}
		for _, e := range readReport(t, got.stdout).Reservations {
			if want := map[string]string{"10.244.1.3": "unknown", "10.244.1.6": "torn"}[e.IP.String()]; e.Cause != want {
				t.Errorf("%s: %v has the cause %q, want %q", cmd, e.IP, e.Cause, want)
			}
		}
	}

	want := make(map[string]string)
	for ip, v := range everyVerdict {
		if want[ip] = v; v == "leaked" {
			want[ip] = "released"
		}
	}
	got := run(t, n.dir, nil, append([]string{"release"}, flags...)...)
	if diff := cmp.Diff(want, verdicts(t, got.stdout)); diff != "" || got.status != statusDone {
		t.Errorf("release: exit status %d, verdicts (-want +got):\n%s", got.status, diff)
	}
	for ip, v := range want {
		if there := nw.there(ip); there != (v != "released") {
			t.Errorf("%s was %s: is its file there? %v", ip, v, there)
		}
	}

	// R12: a second pass over the same state does nothing.
	for ip, v := range want {
		if v == "released" {
			delete(want, ip)
		}
	}
	got = run(t, n.dir, nil, append([]string{"release"}, flags...)...)
	if diff := cmp.Diff(want, verdicts(t, got.stdout)); diff != "" || got.status != statusDone {
		t.Errorf("second release: exit status %d, verdicts (-want +got):\n%s", got.status, diff)
	}
}

// Each flag's option of the library.
func TestOptions(t *testing.T) {
	for _, row := range []struct {
		reason string
		args   []string
		want   gc.Options
	}{
		{"none: the library's own defaults, but a source may take as long as the whole", nil, gc.Options{SourceTimeout: 30 * time.Second}},
		{"a timeout is for a source that is slow, too", []string{"--timeout", "3m"}, gc.Options{SourceTimeout: 3 * time.Minute}},
		{"no timeout is the longest that there is", []string{"--timeout", "0"}, gc.Options{SourceTimeout: 24 * time.Hour}},
		{"a minimum age", []string{"--min-age", "1s"}, gc.Options{MinAge: time.Second, SourceTimeout: 30 * time.Second}},
		{"the runtime's timeout, from which the minimum age follows", []string{"--runtime-request-timeout", "4m"}, gc.Options{RuntimeRequestTimeout: 4 * time.Minute, SourceTimeout: 30 * time.Second}},
		{"prefixes of owners", []string{"--allow-foreign", "default-", "--allow-foreign", "*"}, gc.Options{AllowForeign: []string{"default-", "*"}, SourceTimeout: 30 * time.Second}},
	} {
		a := &app{stderr: io.Discard}
		c := a.listCommand()
		if err := c.ParseFlags(row.args); err != nil {
			t.Fatalf("%s: %v", row.reason, err)
		}
		row.want.Logger = a.logger()
		if row.want.RuntimeRequestTimeout == 0 {
			row.want.RuntimeRequestTimeout = gc.DefaultRuntimeRequestTimeout
		}
		if diff := cmp.Diff(row.want, a.onceOptions(), cmpopts.IgnoreUnexported(row.want.Logger)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}
