// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rewrite replaces the content of an address's file, and keeps its timestamp.
func (nw *podNetwork) rewrite(ip, content string) {
	nw.t.Helper()
	info, err := os.Stat(nw.file(ip))
	if err != nil {
		nw.t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(nw.file(ip), []byte(content), 0o600), os.Chtimes(nw.file(ip), info.ModTime(), info.ModTime())); err != nil {
		nw.t.Fatal(err)
	}
}

// A plan is carried out an hour later, when half of its reservations have changed. Only the others
// are released.
func TestPlanIsCarriedOutLater(t *testing.T) {
	n := newNode(t)
	podnet, storage := n.network("podnet", "10.1.0.0/24"), n.network("storage", "10.2.0.0/24")
	live := []pod{{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}}}
	podnet.add(sandbox("web"), 2*time.Hour)
	var leaked []string
	for i := range 10 {
		leaked = append(leaked, podnet.add(sandbox(fmt.Sprint("gone", i)), 2*time.Hour)...)
	}
	other := storage.add(sandbox("gone in another network"), 2*time.Hour)
	n.pods("pods.json", live...)
	args := []string{"--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}
	plan := run(t, n.dir, nil, append([]string{"plan", "-o", "json"}, args...)...)
	if plan.status != 0 {
		t.Fatal(plan.stderr)
	}
	n.put("plan.json", plan.stdout)

	podnet.rewrite(leaked[0], sandbox("new")+"\r\neth0")   // another container has it, with the same timestamp
	podnet.date(leaked[1], 90*time.Minute)                 // reserved again, for the same container
	podnet.rewrite(leaked[2], sandbox("gone2")+"\r\neth1") // for another interface
	live = append(live, pod{Namespace: "shop", Name: "back", ContainerIDs: []string{sandbox("gone3")}}, pod{Namespace: "shop", Name: "claims", IPs: leaked[4:5]})
	n.pods("pods.json", live...) // two are in use now
	later := podnet.add(sandbox("leaked after the plan"), time.Hour)

	args = append([]string{"release", "--from", "plan.json"}, args...)
	got := run(t, n.dir, nil, args...)
	if want := "5 of 10 reservations of the plan plan.json were released"; got.status != 0 || !strings.Contains(got.stderr, want) {
		t.Errorf("exit status %d, and stderr %q, want %q", got.status, got.stderr, want)
	}
	for i, ip := range slices.Concat(leaked, later, other) {
		if released := i >= 5 && i < 10; podnet.there(ip) == released && storage.there(ip) == released {
			t.Errorf("%s, the %dth: released is not %v", ip, i, released)
		}
	}
	if again := run(t, n.dir, nil, args...); !strings.Contains(again.stderr, "0 of 10") || again.status != 0 {
		t.Errorf("once more: exit status %d, %q", again.status, again.stderr)
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
		{"leaked", []string{"--ip", "10.1.0.3"}, 2, 0, ""},
		{"an IPv4 address written as IPv6", []string{"--ip", "::ffff:10.1.0.3"}, 2, 0, ""},
		{"two of them", []string{"--ip", "10.1.0.3", "--ip", "10.1.0.4"}, 1, 0, ""},
		{"in use", []string{"--ip", "10.1.0.2"}, 3, 1, "10.1.0.2 was not released: it is in-use in network podnet"},
		{"one leaked and one not reserved", []string{"--ip", "10.1.0.3", "--ip", "10.1.0.99"}, 2, 1, "10.1.0.99 was not released: it is not reserved"},
		{"no address", []string{"--ip", "web"}, 3, 2, `"web" is no address`},
		{"no such plan", []string{"--from", "nowhere.json"}, 3, 1, "reading the plan"},
		{"a plan whose name a script left empty", []string{"--from", ""}, 3, 2, "--from is empty"},
		{"not a plan", []string{"--from", "pods.json"}, 3, 1, "reading the plan pods.json"},
		{"a plan of another version", []string{"--from", "version.json"}, 3, 1, "schemaVersion is 2"},
		{"not in the plan", []string{"--ip", "10.1.0.3", "--from", "empty.json"}, 3, 1, "the plan has another reservation"},
		{"a plan that was edited: the new pass decides", []string{"--from", "all.json"}, 1, 0, "2 of 3 reservations of the plan all.json were released"},
		{"a plan with more behind it", []string{"--from", "more.json"}, 3, 1, "reading the plan more.json"},
		{"a plan of nothing", []string{"--from", "null.json"}, 3, 0, "0 of 1 reservations of the plan"},
		{"a list without verdicts", []string{"--from", "unjudged.json"}, 3, 1, "nothing was judged in it"},
		{"what check has printed", []string{"--from", "check.json"}, 3, 1, "nothing was judged in it"},
		{"a plan like no other", []string{"--from", "huge.json"}, 3, 1, "huge.json is longer than 64 MiB"},
		{"a link to a plan", []string{"--ip", "10.1.0.3", "--from", "link.json"}, 3, 1, "the plan has another reservation"},
		{"a directory", []string{"--from", "networks"}, 3, 1, "reading the plan"},
		{"one address twice", []string{"--ip", "10.1.0.2", "--ip", "::ffff:10.1.0.2"}, 3, 1, "10.1.0.2 was not released"},
		{"an address with a zone", []string{"--ip", "fe80::1%eth0"}, 3, 2, "no zones"},
		{"a dry run shows all", []string{"--ip", "10.1.0.3", "--dry-run"}, 3, 2, "--dry-run"},
	} {
		n := newNode(t)
		podnet := n.network("podnet", "10.1.0.0/24")
		for _, name := range []string{"web", "gone", "gone too"} {
			podnet.add(sandbox(name), time.Hour)
		}
		n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
		print := func(args ...string) string {
			return run(t, n.dir, nil, append(args, "--data-dir", "networks", "-o", "json")...).stdout
		}
		plan := func() string { return print("plan", "--source", "file:pods.json") }
		const nothing = `{"schemaVersion": 1, "dataDir": "networks", "looks": 1}`
		for name, text := range map[string]func() string{
			"version.json": func() string { return `{"schemaVersion": 2}` },
			"empty.json":   func() string { return nothing },
			"null.json":    func() string { return nothing[:len(nothing)-1] + `, "reservations": [null, {"verdict": "leaked"}]}` },
			"huge.json":    func() string { return strings.Repeat(" ", maxPlan+1) },
			"more.json":    func() string { return plan() + "{}" },
			"all.json": func() string {
				return strings.NewReplacer(`"in-use"`, `"leaked"`, `"container-live"`, `"unowned"`).Replace(plan())
			},
			"unjudged.json": func() string { return print("list") },
			"check.json":    func() string { return print("check", "--source", "file:pods.json", "--cni-dir", ".") },
		} {
			if slices.Contains(row.flags, name) {
				n.put(name, text())
			}
		}
		if slices.Contains(row.flags, "link.json") {
			n.put("target.json", nothing)
			if err := os.Symlink("target.json", filepath.Join(n.dir, "link.json")); err != nil {
				t.Fatal(err)
			}
		}
		got := run(t, n.dir, nil, append([]string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}, row.flags...)...)
		left := 0
		for _, ip := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
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

// An address that is reserved in a network that --network does not name is not reported as free.
func TestAddressElsewhere(t *testing.T) {
	n := newNode(t)
	n.network("podnet", "10.1.0.0/24").add(sandbox("web"), time.Hour)
	other := n.network("other", "10.2.0.0/24")
	other.add(sandbox("gone"), time.Hour)
	n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
	const elsewhere = "it is reserved in other, which --network does not name"
	for _, row := range []struct {
		reason string
		args   []string
		status int
		says   string
	}{
		{"to be shown", []string{"show", "10.2.0.2"}, 0, "10.2.0.2: " + elsewhere},
		{"to be shown, and nobody has it", []string{"show", "10.2.0.9"}, 0, "10.2.0.9: it is not reserved in networks"},
		{"to be released", []string{"release", "--ip", "10.2.0.2"}, 1, "10.2.0.2 was not released: " + elsewhere},
	} {
		got := run(t, n.dir, nil, append(row.args, "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json")...)
		if got.status != row.status || !strings.Contains(got.stdout+got.stderr, row.says) || !other.there("10.2.0.2") {
			t.Errorf("%s: exit status %d, and not %q:\n%s%s", row.reason, got.status, row.says, got.stdout, got.stderr)
		}
	}
}
