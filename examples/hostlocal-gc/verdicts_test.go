// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// every is a network with one reservation for each verdict that one look can
// give, and the pods that lead to it.
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

// The plugin's address comes back to it: a full range has room again.
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

// Each network's pass is told of all others of the data dir, also of those that
// are not asked for.
func TestSiblings(t *testing.T) {
	for _, row := range []struct {
		reason string
		flags  []string
		want   map[string]string
	}{
		{"both networks", nil, map[string]string{"10.1.0.2": "in-use", "10.2.0.2": "in-use", "10.1.0.3": "leaked", "10.2.0.3": "leaked"}},
		{"only the one whose addresses no source reports", []string{"--network", "storage"}, map[string]string{"10.2.0.2": "in-use", "10.2.0.3": "leaked"}},
		{"asked for twice", []string{"--network", "storage", "--network", "storage"}, map[string]string{"10.2.0.2": "in-use", "10.2.0.3": "leaked"}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			podnet, storage := n.network("podnet", "10.1.0.0/24"), n.network("storage", "10.2.0.0/24")
			for _, name := range []string{"live", "gone"} {
				podnet.add(sandbox(name), time.Hour)
				storage.add(sandbox(name), time.Hour)
			}
			n.pods("pods.json", pod{Namespace: "a", Name: "live", IPs: []string{"10.1.0.2"}})
			got := run(t, n.dir, nil, append([]string{"plan", "--data-dir", "networks", "--source", "file:pods.json", "-o", "json"}, row.flags...)...)
			if diff := cmp.Diff(row.want, verdicts(t, got.stdout)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What the flags change of a verdict.
func TestFlags(t *testing.T) {
	for _, row := range []struct {
		reason string
		pods   []pod
		flags  []string
		want   string // of 10.1.0.2, which is an hour old
		status int
		stderr string
	}{
		{"an hour is older than the minimum age", []pod{{Name: "x", IPs: []string{"10.1.0.9"}}}, nil, "leaked", 0, ""},
		{"and younger than a given one", []pod{{Name: "x", IPs: []string{"10.1.0.9"}}}, []string{"--min-age", "2h"}, "young", 0, ""},
		{"an empty answer is refused", nil, nil, "failed", 1, "pod source reports no pod at all"},
		{"unless it is expected", nil, []string{"--allow-empty"}, "leaked", 0, ""},
		{"a pod that must be seen is missing", []pod{{Namespace: "kube-system", Name: "x"}}, []string{"--require-pod", "kube-system/agent"}, "failed", 1, "the required kube-system/agent is not among them"},
		{"a pod that must be seen is there", []pod{{Namespace: "kube-system", Name: "agent", HostNetwork: true}}, []string{"--require-pod", "kube-system/agent"}, "leaked", 0, ""},
		{"one of two that must be seen is missing", []pod{{Namespace: "a", Name: "b", HostNetwork: true}}, []string{"--require-pod", "a/b", "--require-pod", "a/c"}, "failed", 1, "the required a/c"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			n.network("podnet", "10.1.0.0/24").add(sandbox("gone"), time.Hour)
			n.pods("pods.json", row.pods...)
			got := run(t, n.dir, nil, append([]string{"list", "--data-dir", "networks", "--source", "file:pods.json", "-o", "json"}, row.flags...)...)
			if v := verdicts(t, got.stdout)["10.1.0.2"]; v != row.want || got.status != row.status {
				t.Errorf("got %s and exit status %d, want %s and %d", v, got.status, row.want, row.status)
			}
			if !strings.Contains(got.stderr, row.stderr) || row.stderr == "" && got.stderr != "" {
				t.Errorf("stderr is %q, want %q", got.stderr, row.stderr)
			}
		})
	}
	t.Run("no minimum age, for who knows that no ADD is in flight", func(t *testing.T) {
		n := newNode(t)
		n.network("podnet", "10.1.0.0/24").add(sandbox("gone"), 0)
		n.pods("pods.json", pod{Name: "x", IPs: []string{"10.1.0.9"}})
		got := run(t, n.dir, nil, "list", "--data-dir", "networks", "--source", "file:pods.json", "-o", "json", "--min-age", "0")
		if v := verdicts(t, got.stdout)["10.1.0.2"]; v != "leaked" {
			t.Errorf("got %s: %s", v, got.stderr)
		}
	})
}

// A file that was written before the minimum age is believed, but not silently.
func TestStaleFile(t *testing.T) {
	n := fullNode(t)
	nw := &podNetwork{node: n, name: ".."} // dates pods.json
	nw.date("pods.json", 2*time.Hour)
	got := run(t, n.dir, nil, "plan", "--data-dir", "networks", "--source", "file:pods.json")
	if want := "pods.json is 2h old"; got.status != statusDone || !strings.Contains(got.stderr, want) {
		t.Errorf("exit status %d, and stderr %q does not say %q", got.status, got.stderr, want)
	}
}

func TestLogging(t *testing.T) {
	for _, row := range []struct {
		reason string
		flags  []string
		want   map[string]bool // what is in the log
	}{
		{"nothing but errors", nil, map[string]bool{"Released": false, "Kept": false}},
		{"each release", []string{"-v", "0"}, map[string]bool{"Released": true, "Kept": false}},
		{"also what was kept though no pod has it", []string{"-v", "2"}, map[string]bool{"Released": true, "Kept": true, `"IP"="10.244.1.2"`: false}},
		{"everything", []string{"-v", "4"}, map[string]bool{"Released": true, `"IP"="10.244.1.2"`: true}},
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
