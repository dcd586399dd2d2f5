// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// leakyNode has a full /24: 10 addresses of live pods, 3 young ones, and 240 that leaked.
func leakyNode(t *testing.T) *node {
	n := newNode(t)
	nw := n.network("podnet", "10.244.1.0/24")
	var live []pod
	for i := range 253 {
		age := 3 * time.Hour
		if i >= 250 {
			age = 0
		}
		nw.add(sandbox(fmt.Sprint(i)), age)
		if i < 10 {
			live = append(live, pod{Name: fmt.Sprint("web-", i), ContainerIDs: []string{sandbox(fmt.Sprint(i))}})
		}
	}
	n.pods("pods.json", live...)
	n.put("cut.json", `[`)
	return n
}

// Of many rows with one reason the first are shown and the others counted. -o json has all.
func TestFewRows(t *testing.T) {
	n := leakyNode(t)
	run := func(args ...string) outcome { return run(t, n.dir, nil, append(args, "--data-dir", "networks")...) }
	const leaks = "... 228 more: unowned (-o json has all)\n"
	for _, row := range []struct {
		reason, args string
		rows         int
		more         string
	}{
		{"leaks, beside three young ones", "plan --source file:pods.json", 12 + 3, leaks},
		{"... and ten that are in use", "plan --all --source file:pods.json", 12 + 3 + 10, leaks},
		{"no source answers", "plan --all --source file:cut.json", 12, "... 241 more: source-failed (-o json has all)\n"},
		{"no source answers, and the disk alone is no plan", "plan --source file:cut.json", 0, ""},
	} {
		got := run(strings.Fields(row.args)...)
		if rows := strings.Count(got.stdout, "\n10.244.1."); rows != row.rows || !strings.Contains(got.stdout, row.more) {
			t.Errorf("%s: %d rows, want %d, with %q:\n%s", row.reason, rows, row.rows, row.more, got.stdout)
		}
	}
	if got := readReport(t, run("plan", "--source", "file:pods.json", "-o", "json").stdout); len(got.Reservations) != 253 {
		t.Errorf("the JSON has %d reservations, and all are wanted", len(got.Reservations))
	}
	if got := run("release", "--source", "file:pods.json", "--network", "podnet"); !strings.Contains(got.stdout, "... 228 more: released-leak") {
		t.Errorf("of a release:\n%s", got.stdout)
	}
}

// A source's error is printed first, and only once.
func TestErrorOnceAndFirst(t *testing.T) {
	n := leakyNode(t)
	for _, args := range []string{"plan", "plan -o json", "plan --ip 10.244.1.2", "map", "release"} {
		cmd := command(t, n.dir, append(strings.Fields(args), "--data-dir", "networks", "--network", "podnet", "--source", "file:cut.json")...)
		both := new(bytes.Buffer) // as on a terminal
		cmd.Stdout, cmd.Stderr = both, both
		got := finish(t, cmd, cmd.Run)
		first, rest, _ := strings.Cut(both.String(), "\n")
		if got.status != statusError || !strings.HasPrefix(first, "hostlocal-gc: ") || !strings.Contains(first, "file:cut.json: ") {
			t.Errorf("%s: exit status %d, and the first line is %q", args, got.status, first)
		}
		again := strings.Contains(args, "--ip") || strings.Contains(args, "json") // which say it of each source
		if strings.Contains(rest, "cut.json: ") != again {
			t.Errorf("%s says it twice, or does not say it of a source:\n%s", args, both)
		}
	}
}

// --ip releases a leaked address. For any other it is an error that says why.
func TestReleaseByAddress(t *testing.T) {
	for _, row := range []struct {
		reason string
		flags  []string
		left   int
		status int
		stderr string
	}{
		{"leaked", []string{"--ip", "10.1.0.3"}, 3, 0, ""},
		{"an IPv4 address written as IPv6", []string{"--ip", "::ffff:10.1.0.3"}, 3, 0, ""},
		{"two of them", []string{"--ip", "10.1.0.3", "--ip", "10.1.0.4"}, 2, 0, ""},
		{"in use", []string{"--ip", "10.1.0.2"}, 4, 1, "10.1.0.2 was not released: it is in-use in network podnet"},
		{"one leaked and one not reserved", []string{"--ip", "10.1.0.3", "--ip", "10.1.0.99"}, 3, 1, "10.1.0.99 was not released: it is not reserved"},
		{"all", nil, 2, 0, ""},
		{"reserved in another network", []string{"--ip", "10.2.0.2"}, 4, 1, "10.2.0.2 was not released: it is leaked in network other: "},
		{"nerdctl's, too, whose container has certainly ended", []string{"--allow-foreign", "default-"}, 1, 0, ""},
		{"no address", []string{"--ip", "web"}, 4, 2, `"web" is no address`},
		{"one address twice", []string{"--ip", "10.1.0.2", "--ip", "::ffff:10.1.0.2"}, 4, 1, "10.1.0.2 was not released"},
		{"an address with a zone", []string{"--ip", "fe80::1%eth0"}, 4, 2, "no zones"},
	} {
		n := newNode(t)
		podnet := n.network("podnet", "10.1.0.0/24")
		for _, name := range []string{"web", "gone", "gone too"} {
			podnet.add(sandbox(name), time.Hour)
		}
		foreign := podnet.add("default-"+sandbox("nerdctl's"), time.Hour)[0]
		n.network("other", "10.2.0.0/24").add(sandbox("gone"), time.Hour)
		n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
		got := run(t, n.dir, nil, append([]string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}, row.flags...)...)
		left := 0
		for _, ip := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", foreign} {
			if podnet.there(ip) {
				left++
			}
		}
		if row.status == 0 && row.stderr == "" && got.stderr != "" {
			t.Errorf("%s: stderr %q", row.reason, got.stderr)
		}
		if strings.Count(got.stderr, "was not released") > 1 {
			t.Errorf("%s: printed twice: %s", row.reason, got.stderr)
		}
		if left != row.left || got.status != row.status || !strings.Contains(got.stderr, row.stderr) {
			t.Errorf("%s: %d left, exit status %d, stderr %q", row.reason, left, got.status, got.stderr)
		}
	}
}

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

	got := run(t, n.dir, nil, append([]string{"plan"}, flags...)...)
	if diff := cmp.Diff(everyVerdict, verdicts(t, got.stdout)); diff != "" || got.status != statusDone {
		t.Errorf("exit status %d, verdicts (-want +got):\n%s", got.status, diff)
	}
	for _, e := range readReport(t, got.stdout).Reservations {
		if want := map[string]string{"10.244.1.3": "unknown", "10.244.1.6": "torn"}[e.IP.String()]; e.Cause != want {
			t.Errorf("%v has the cause %q, want %q", e.IP, e.Cause, want)
		}
	}

	want := make(map[string]string)
	for ip, v := range everyVerdict {
		if want[ip] = v; v == "leaked" {
			want[ip] = "released"
		}
	}
	for _, pass := range []string{"release", "a second release, over the same state (R12)"} {
		got := run(t, n.dir, nil, append([]string{"release"}, flags...)...)
		if diff := cmp.Diff(want, verdicts(t, got.stdout)); diff != "" || got.status != statusDone {
			t.Errorf("%s: exit status %d, verdicts (-want +got):\n%s", pass, got.status, diff)
		}
		for ip, v := range want {
			if there := nw.there(ip); there != (v != "released") {
				t.Errorf("%s: %s was %s: is its file there? %v", pass, ip, v, there)
			}
		}
		maps.DeleteFunc(want, func(_, v string) bool { return v == "released" })
	}
}
