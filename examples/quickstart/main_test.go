// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// expected is the expected result: for each address the verdict, the rule and the pod in the last
// table, and whether its file still exists.
var expected = []struct {
	reason  string
	address string
	verdict string
	there   bool
}{
	{"an empty file has no owner that a DEL could name", "10.244.1.2", "released R3 -", false},
	{"its container is in the store", "10.244.1.3", "in-use R3 dns/coredns", true},
	{"a pod of the name of a leaked one is live", "10.244.1.4", "in-use R3 shop/cache-0", true},
	{"its container is in the store", "10.244.1.5", "in-use R3 shop/web-1", true},
	{"the pod is gone, first of two addresses", "10.244.1.6", "released R3 -", false},
	{"the pod is gone", "10.244.1.7", "released R3 -", false},
	{"the owner is gone, and a live pod has the address", "10.244.1.8", "conflict R10 db/mysql-0", true},
	{"its container is in the store", "10.244.1.9", "in-use R3 shop/web-2", true},
	{"the pod is gone", "10.244.1.10", "released R3 -", false},
	{"no ADD is in flight, so a young one leaked, too", "10.244.1.11", "released R3 -", false},
	{"its container is in the store", "fd00:10:244:1::2", "in-use R3 dns/coredns", true},
	{"its container is in the store", "fd00:10:244:1::3", "in-use R3 shop/web-1", true},
	{"the pod is gone, second of two addresses", "fd00:10:244:1::4", "released R3 -", false},
	{"no ADD is in flight, so a young one leaked, too", "fd00:10:244:1::5", "released R3 -", false},
}

func TestTour(t *testing.T) {
	dataDir := t.TempDir()
	var out bytes.Buffer
	if err := tour(t.Context(), &out, term.Screen{}, dataDir); err != nil {
		t.Fatal(err)
	}

	before, after, ok := strings.Cut(out.String(), "After:")
	if !ok {
		t.Fatalf("no second table in:\n%s", &out)
	}
	shown := make(map[string]string)
	for line := range strings.Lines(after) {
		if f := strings.Fields(line); len(f) >= 4 && strings.ContainsAny(f[0], ".:") {
			shown[f[0]] = strings.Join(f[1:4], " ")
		}
	}
	if empty := "\n10.244.1.2        -             -       3d4h     0  "; !strings.Contains(before, empty) {
		t.Errorf("the first table does not show the file that a power loss left empty:\n%s", before)
	}
	want, wantThere := make(map[string]string), make(map[string]bool)
	for _, row := range expected {
		want[row.address] = row.verdict
		if row.there {
			wantThere[row.address] = true
		}
		if shown[row.address] != row.verdict {
			t.Errorf("%s, because %s: got %q, want %q", row.address, row.reason, shown[row.address], row.verdict)
		}
		if !strings.Contains(before, "\n"+row.address+" ") {
			t.Errorf("%s is not in the first table", row.address)
		}
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("verdicts in the second table (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantThere, reserved(t, dataDir)); diff != "" {
		t.Errorf("reservations that are left (-want +got):\n%s", diff)
	}
	for _, says := range []string{"Released 7, kept 7: 6 in-use, 1 conflict.", "lock was held for "} {
		if !strings.Contains(after, says) {
			t.Errorf("the summary does not say %q:\n%s", says, after)
		}
	}
}

// reserved returns the addresses that have a file.
func reserved(t *testing.T, dataDir string) map[string]bool {
	t.Helper()
	list, err := hostlocal.New(dataDir).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, r := range list.Reservations {
		there[r.IP.String()] = true
	}
	return there
}
