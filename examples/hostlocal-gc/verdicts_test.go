// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
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

// Released addresses are handed out again: a full range has room.
func TestReleasedAddressesAreHandedOutAgain(t *testing.T) {
	n := fullNode(t)
	nw := n.network("podnet", "10.244.1.0/28")
	if _, err := nw.ranges[0].Get(sandbox("new"), "eth0", nil); err == nil {
		t.Fatal("the range is not full to begin with")
	}
	if got := run(t, n.dir, nil, "release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"); got.status != statusDone {
		t.Fatalf("exit status %d: %s", got.status, got.stderr)
	}
	nw.add(sandbox("new"), 0)
}

// A pass reads all networks of the data directory, also those that were not requested: a container
// may hold addresses in several (R3). Leaks in the others are shown, and not counted as leaked.
func TestSiblings(t *testing.T) {
	for _, row := range []struct {
		reason string
		flags  []string
		want   map[string]string
		shown  string
	}{
		{
			"both networks", nil,
			map[string]string{"10.1.0.2": "address-claimed", "10.2.0.2": "sibling-in-use", "10.1.0.3": "unowned", "10.2.0.3": "unowned"},
			"2 networks, 4 reservations: 2 in-use, 2 leaked.",
		},
		{
			"only the one whose addresses no source reports", []string{"--network", "storage"},
			map[string]string{"10.1.0.2": "address-claimed", "10.2.0.2": "sibling-in-use", "10.1.0.3": "network-not-named", "10.2.0.3": "unowned"},
			"storage, 2 reservations: 1 in-use, 1 leaked.",
		},
		{
			"asked for twice", []string{"--network", "storage", "--network", "storage"},
			map[string]string{"10.1.0.2": "address-claimed", "10.2.0.2": "sibling-in-use", "10.1.0.3": "network-not-named", "10.2.0.3": "unowned"},
			"storage, 2 reservations: 1 in-use, 1 leaked.",
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			podnet, storage := n.network("podnet", "10.1.0.0/24"), n.network("storage", "10.2.0.0/24")
			for _, name := range []string{"live", "gone"} {
				podnet.add(sandbox(name), time.Hour)
				storage.add(sandbox(name), time.Hour)
			}
			n.pods("pods.json", pod{Namespace: "a", Name: "live", IPs: []string{"10.1.0.2"}})
			args := append([]string{"plan", "--data-dir", "networks", "--source", "file:pods.json"}, row.flags...)
			got := run(t, n.dir, nil, append(args, "-o", "json")...)
			if diff := cmp.Diff(row.want, reasons(t, got.stdout)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := run(t, n.dir, nil, args...); !strings.Contains(got.stdout, row.shown) {
				t.Errorf("%q is not in:\n%s", row.shown, got.stdout)
			}
		})
	}
}

// The effect of flags on a verdict.
func TestFlags(t *testing.T) {
	for _, row := range []struct {
		reason string
		pods   []pod
		flags  []string
		want   string // reason of 10.1.0.2, an hour old
		status int
		stderr string
	}{
		{"an hour is older than the minimum age", []pod{{Name: "x", IPs: []string{"10.1.0.9"}}}, nil, "unowned", 0, ""},
		{"and younger than a given one", []pod{{Name: "x", IPs: []string{"10.1.0.9"}}}, []string{"--min-age", "2h"}, "too-young", 0, ""},
		{"and than an ADD may take on a node with such a timeout", []pod{{Name: "x", IPs: []string{"10.1.0.9"}}}, []string{"--runtime-request-timeout", "30m"}, "too-young", 0, ""},
		{"a given age does not lower what an ADD may take", []pod{{Name: "x", IPs: []string{"10.1.0.9"}}}, []string{"--runtime-request-timeout", "30m", "--min-age", "2s"}, "not-yet-listed", 0, ""},
		{"an empty answer is refused, and the flag is named", nil, nil, "source-failed", 1, "--allow-empty"},
		{"unless it is expected", nil, []string{"--allow-empty"}, "unowned", 0, ""},
		{"what is required must be there also where empty is allowed", nil, []string{"--allow-empty", "--require-pod", "a/b"}, "source-failed", 1, "the required a/b"},
		{"a pod that must be seen is missing", []pod{{Namespace: "kube-system", Name: "x"}}, []string{"--require-pod", "kube-system/agent"}, "source-failed", 1, "the required kube-system/agent does not run among them"},
		{"a pod that must be seen is there", []pod{{Namespace: "kube-system", Name: "agent", HostNetwork: true}}, []string{"--require-pod", "kube-system/agent"}, "unowned", 0, ""},
		{"a pod that must be seen has finished", []pod{{Namespace: "kube-system", Name: "agent", Finished: true}}, []string{"--require-pod", "kube-system/agent"}, "source-failed", 1, "the required kube-system/agent"},
		{"one of two that must be seen is missing", []pod{{Namespace: "a", Name: "b", HostNetwork: true}}, []string{"--require-pod", "a/b", "--require-pod", "a/c"}, "source-failed", 1, "the required a/c"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			n.network("podnet", "10.1.0.0/24").add(sandbox("gone"), time.Hour)
			n.pods("pods.json", row.pods...)
			got := run(t, n.dir, nil, append([]string{"list", "--data-dir", "networks", "--source", "file:pods.json", "-o", "json"}, row.flags...)...)
			if why := reasons(t, got.stdout)["10.1.0.2"]; why != row.want || got.status != row.status {
				t.Errorf("got %s and exit status %d, want %s and %d", why, got.status, row.want, row.status)
			}
			if !strings.Contains(got.stderr, row.stderr) || row.stderr == "" && got.stderr != "" {
				t.Errorf("stderr is %q, want %q", got.stderr, row.stderr)
			}
		})
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

// A file has no pods that started after it was written, so ages count up to then (hazard 62), and
// its age is printed. The ages compared here are above an hour, so they have no seconds. With a
// file from the future nothing is released (hazard 75).
func TestAgeOfFile(t *testing.T) {
	for _, row := range []struct {
		reason string
		age    time.Duration
		want   map[string]string
		says   string
	}{
		{"just written", 0, map[string]string{"10.1.0.2": "unowned", "10.1.0.3": "unowned"}, "Sources: file (1 entry).\n"},
		{"younger than the leak by more than the minimum age", 2*time.Hour + 50*time.Minute, map[string]string{"10.1.0.2": "unowned", "10.1.0.3": "unowned"}, "Sources: file (1 entry, 2h50m old).\n"},
		{"older than one leak", 4 * time.Hour, map[string]string{"10.1.0.2": "too-young", "10.1.0.3": "unowned"}, "Sources: file (1 entry, 4h old).\n"},
		{"dated in the future", -time.Hour, map[string]string{"10.1.0.2": "stale-answer", "10.1.0.3": "stale-answer"}, "Sources: file (1 entry, dated "},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			nw := n.network("podnet", "10.1.0.0/24")
			nw.add(sandbox("gone"), 3*time.Hour)
			nw.add(sandbox("gone before"), day)
			n.pods("pods.json", pod{Name: "x", IPs: []string{"10.1.0.9"}})
			at := time.Now().Add(-row.age)
			if err := os.Chtimes(filepath.Join(n.dir, "pods.json"), at, at); err != nil {
				t.Fatal(err)
			}
			args := []string{"plan", "--data-dir", "networks", "--source", "file:pods.json"}
			if diff := cmp.Diff(row.want, reasons(t, run(t, n.dir, nil, append(args, "-o", "json")...).stdout)); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if got := run(t, n.dir, nil, args...); got.status != statusDone || !strings.Contains(got.stdout, row.says) {
				t.Errorf("exit status %d, and %q is not in:\n%s", got.status, row.says, got.stdout)
			}
		})
	}
}

func TestLogging(t *testing.T) {
	for _, row := range []struct {
		reason string
		flags  []string
		want   map[string]bool // by line: whether the log has it
	}{
		{"nothing but errors", nil, map[string]bool{"Released": false, "Kept": false}},
		{"each release", []string{"-v", "0"}, map[string]bool{"Released": true, "Kept": false}},
		{"also what was kept though no pod has it", []string{"-v", "2"}, map[string]bool{"Released": true, "Kept": true, "IP=10.244.1.2 ": false}},
		{"everything", []string{"-v", "4"}, map[string]bool{"Released": true, "IP=10.244.1.2 ": true}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n, _ := every(t)
			got := run(t, n.dir, nil, append([]string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}, row.flags...)...)
			for text, want := range row.want {
				if strings.Contains(got.stderr, text) != want {
					t.Errorf("is %q in the log? it should be %v:\n%s", text, want, got.stderr)
				}
			}
		})
	}
}
