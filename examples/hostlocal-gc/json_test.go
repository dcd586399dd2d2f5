// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A report is what -o json prints of one network, as far as tests read it.
type report struct {
	Network      string         `json:"network"`
	Counts       map[string]int `json:"counts"`
	Duplicates   []any          `json:"duplicates"`
	Unreserved   []any          `json:"unreserved"`
	Reservations []struct {
		IP          netip.Addr `json:"ip"`
		ContainerID string     `json:"containerID"`
		Verdict     string     `json:"verdict"`
		Error       string     `json:"error"`
	} `json:"reservations"`
}

// reports reads -o json, after a check against the schema.
func reports(t *testing.T, stdout string) []report {
	t.Helper()
	checkSchema(t, stdout)
	var out []report
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// verdicts returns the verdict of each address of all networks.
func verdicts(t *testing.T, stdout string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, r := range reports(t, stdout) {
		for _, e := range r.Reservations {
			out[e.IP.String()] = e.Verdict
		}
	}
	return out
}

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join("testdata", "report.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func checkSchema(t *testing.T, text string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if err := schema(t).Validate(value); err != nil {
		t.Errorf("%v in:\n%s", err, text)
	}
}

// The schema must be able to fail, or it says nothing of what passes.
func TestSchemaRefuses(t *testing.T) {
	n := conflictNode(t)
	good := run(t, n.dir, nil, "plan", "--data-dir", "networks", "--source", "file:pods.json", "-o", "json").stdout
	for _, row := range []struct{ reason, old, new string }{
		{"a verdict that the design does not have", `"verdict": "leaked"`, `"verdict": "orphaned"`},
		{"a count of one", `"leaked": 1`, `"orphaned": 1`},
		{"no address", `"ip": "10.244.1.2"`, `"ip": "10.244.1"`},
		{"no time", `"started": "`, `"started": "about `},
		{"a field that is missing", `"lockHeldSeconds": 0,`, ``},
		{"a field of another name", `"durationSeconds"`, `"seconds"`},
		{"a list that is null", `"duplicates": []`, `"duplicates": null`},
	} {
		bad := strings.Replace(good, row.old, row.new, 1)
		if bad == good {
			t.Errorf("%s: %q is not in:\n%s", row.reason, row.old, good)
			continue
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(bad))
		if err != nil {
			t.Fatal(err)
		}
		if schema(t).Validate(value) == nil {
			t.Errorf("%s passes", row.reason)
		}
	}
}

// The schema has exactly the library's verdicts.
func TestSchemaVerdicts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "report.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Defs struct {
			Verdict struct {
				Enum []string `json:"enum"`
			} `json:"verdict"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, v := range gc.Verdicts() {
		want = append(want, v.String())
	}
	if diff := cmp.Diff(want, s.Defs.Verdict.Enum); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every scene, by every command, gives JSON by the schema, with the same
// verdicts, sorted by address.
func TestJSONOfScenes(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		t.Run(name, func(t *testing.T) {
			n := scenes[name](t)
			var first map[string]string
			for _, args := range [][]string{
				{"list"}, {"plan"}, {"release", "--dry-run"}, {"map"},
			} {
				args = append(args, "--data-dir", "networks", "--source", "file:pods.json", "-o", "json")
				got := run(t, n.dir, nil, args...)
				if got.status != statusDone || got.stderr != "" {
					t.Errorf("%s: exit status %d, stderr %q", args[0], got.status, got.stderr)
				}
				v := verdicts(t, got.stdout)
				if first == nil {
					first = v
				}
				if diff := cmp.Diff(first, v); diff != "" {
					t.Errorf("list and %s differ (-list +%s):\n%s", args[0], args[0], diff)
				}
				for _, r := range reports(t, got.stdout) {
					var ips []netip.Addr
					for _, e := range r.Reservations {
						ips = append(ips, e.IP)
					}
					if !slices.IsSortedFunc(ips, netip.Addr.Compare) {
						t.Errorf("%s: not sorted by address: %v", args[0], ips)
					}
				}
			}
		})
	}
}

func TestJSONOfNothing(t *testing.T) {
	n := newNode(t)
	for _, args := range [][]string{{"list"}, {"plan", "--source", "file:-"}, {"map"}, {"networks"}} {
		got := run(t, n.dir, strings.NewReader("[{}]"), append(args, "--data-dir", "networks", "-o", "json")...)
		if got.stdout != "[]\n" || got.status != statusDone {
			t.Errorf("%s: exit status %d and %q, want an empty array", args[0], got.status, got.stdout)
		}
	}
}

// Without a source the JSON keeps its form, and says that nothing was judged.
func TestJSONUnjudged(t *testing.T) {
	n := fullNode(t)
	got := run(t, n.dir, io.Reader(nil), "list", "--data-dir", "networks", "-o", "json")
	if got.status != statusDone || !strings.Contains(got.stderr, "nothing was judged") {
		t.Errorf("exit status %d, stderr %q", got.status, got.stderr)
	}
	if diff := cmp.Diff(map[string]int{"failed": 13}, reports(t, got.stdout)[0].Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestNetworksJSON(t *testing.T) {
	n := dualNode(t)
	got := run(t, n.dir, nil, "networks", "--data-dir", "networks", "-o", "json")
	var rows []networkRow
	if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddr
	want := []networkRow{
		{"podnet", "networks", 14, 7, 7, []netip.Addr{ip("10.244.1.8"), ip("fd00:10:244:1::8")}},
		{"storage", "networks", 3, 3, 0, []netip.Addr{ip("192.168.100.4")}},
	}
	if diff := cmp.Diff(want, rows, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
