// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// IDs are cut in a table and whole in wide; the summary is the last line.
func TestTableAndWide(t *testing.T) {
	n, _ := every(t)
	id := sandbox("running")
	for _, row := range []struct {
		format string
		whole  bool
		head   string
	}{
		{"table", false, "ADDRESS CONTAINER AGE VERDICT POD REASON"},
		{"wide", true, "ADDRESS CONTAINER IFNAME AGE VERDICT RULE POD REASON"},
	} {
		got := run(t, n.dir, nil, "list", "--data-dir", "networks", "--source", "file:pods.json", "-o", row.format)
		lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
		if head := strings.Join(strings.Fields(lines[0]), " "); head != row.head {
			t.Errorf("%s: the head is %q, want %q", row.format, head, row.head)
		}
		if whole := strings.Contains(got.stdout, id); whole != row.whole || !strings.Contains(got.stdout, id[:12]) {
			t.Errorf("%s: is the ID whole? %v, want %v:\n%s", row.format, whole, row.whole, got.stdout)
		}
		want := "podnet, 7 reservations: 1 in-use, 1 young, 1 starting, 1 conflict, 1 malformed, 2 leaked. A second look is worth it in "
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, want) {
			t.Errorf("%s: the last line is %q, want %q", row.format, last, want)
		}
	}
}

// What comes from other programs can't move the cursor or forge a row.
func TestHostileNames(t *testing.T) {
	n, _ := every(t)
	n.put("pods.json", `[{"namespace":"a\nb","name":"\u001b[2J","ips":["10.244.1.2","10.244.1.99"]},{"uid":"\u001b]0;x","ips":["10.244.1.2"]}]`)
	for _, cmd := range []string{"list", "plan", "map"} {
		got := run(t, n.dir, nil, cmd, "--data-dir", "networks", "--source", "file:pods.json")
		if got.status != statusDone || strings.ContainsAny(got.stdout, "\x1b\r") || strings.Contains(got.stdout, "\nb/") {
			t.Errorf("%s: exit status %d: %q", cmd, got.status, got.stdout)
		}
	}
}

// Under the tables: duplicates, and addresses that nothing is reserved for, once
// for all networks.
func TestAttention(t *testing.T) {
	n, _ := every(t)
	n.network("storage", "10.2.0.0/24").add(sandbox("running"), day)
	n.pods("pods.json",
		pod{Namespace: "a", Name: "one", UID: "1", IPs: []string{"10.244.1.2", "10.9.9.9"}},
		pod{Namespace: "a", Name: "two", UID: "2", IPs: []string{"10.244.1.2"}},
	)
	got := run(t, n.dir, nil, "plan", "--data-dir", "networks", "--source", "file:pods.json").stdout
	for _, want := range []string{
		"Several live pods have the same address:\n  10.244.1.2  a/one and a/two\n",
		"which host-local may hand out again:\n  10.9.9.9  a/one\n",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is not once in:\n%s", want, got)
		}
	}
}

// The picture and its SVG are made of the same look at the disk.
func TestMapSVG(t *testing.T) {
	n := dualNode(t)
	args := []string{"map", "--data-dir", "networks", "--source", "file:pods.json", "--cni-conf", "podnet.conf", "--svg"}
	toFile := run(t, n.dir, nil, append(args, "map.svg")...)
	svg, err := os.ReadFile(filepath.Join(n.dir, "map.svg"))
	if err != nil {
		t.Fatal(err)
	}
	toStdout := run(t, n.dir, nil, append(args, "-")...)
	if diff := cmp.Diff(string(svg), toStdout.stdout); diff != "" {
		t.Errorf("(-file +stdout):\n%s", diff)
	}
	for _, text := range []string{"7 of 253 used (2.8 %): 4 in use, 1 young or starting, 2 leaked", "last_reserved_ip: 10.244.1.8"} {
		if !strings.Contains(toFile.stdout, text) || !strings.Contains(string(svg), text) {
			t.Errorf("%q is not in both", text)
		}
	}
}
