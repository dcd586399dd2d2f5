// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
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
	const leaks = "... 228 more leaked: unowned (-o json has all)\n"
	for _, row := range []struct {
		reason, args string
		rows         int
		more         string
	}{
		{"leaks, beside three young ones", "plan --source file:pods.json", 12 + 3, leaks},
		{"... and ten that are in use", "list --source file:pods.json", 12 + 3 + 10, leaks},
		{"no source answers", "list --source file:cut.json", 12, "... 241 more (-o json has all)\n"},
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
	if got := run("release", "--source", "file:pods.json", "--network", "podnet"); !strings.Contains(got.stdout, "... 228 more released: ") {
		t.Errorf("of a release:\n%s", got.stdout)
	}
}

// A source's error is printed first, and only once.
func TestErrorOnceAndFirst(t *testing.T) {
	n := leakyNode(t)
	for _, name := range []string{"list", "plan", "map", "show 10.244.1.2", "release"} {
		for _, format := range []string{"table", "json"} {
			args := append(strings.Fields(name), "--data-dir", "networks", "--network", "podnet", "--source", "file:cut.json")
			if format == "json" && name[0] != 's' && name != "map" {
				args = append(args, "-o", format)
			}
			cmd := command(t, n.dir, args...)
			both, err := os.CreateTemp(t.TempDir(), "") // as on a terminal
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout, cmd.Stderr = both, both
			got := finish(t, cmd.Run(), &strings.Builder{}, &strings.Builder{})
			text, err := os.ReadFile(both.Name())
			if err != nil {
				t.Fatal(err)
			}
			first, rest, _ := strings.Cut(string(text), "\n")
			if got.status != statusError || !strings.HasPrefix(first, "hostlocal-gc: ") || !strings.Contains(first, "file:cut.json: ") {
				t.Errorf("%v: exit status %d, and the first line is %q", args, got.status, first)
			}
			if format == "table" && strings.Contains(rest, "cut.json: ") != (name[0] == 's') { // show says it of each source
				t.Errorf("%v says it twice, or show does not:\n%s", args, text)
			}
		}
	}
}
