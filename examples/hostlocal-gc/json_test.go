// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A report is the part of -o json that tests read.
type report struct {
	Error             string
	Networks, Missing []string
	Reservations      []struct {
		Network, Verdict, Cause string
		IP                      netip.Addr
	}
}

// readReport parses the output of -o json, after a check against the schema.
func readReport(t *testing.T, stdout string) report {
	t.Helper()
	checkSchema(t, "report", stdout)
	var r report
	must(t, json.Unmarshal([]byte(stdout), &r))
	return r
}

func schema(t *testing.T, of string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join("testdata", of+".schema.json"))
	must(t, err)
	return s
}

func checkSchema(t *testing.T, of, text string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if err := schema(t, of).Validate(value); err != nil {
		t.Errorf("%v in:\n%s", err, text)
	}
}

// The schemas reject wrong reports. TestSituations checks the output of check by its own.
func TestSchemaRefuses(t *testing.T) {
	n := fullNode(t)
	n.put("broken.conf", "{")
	args := []string{"--data-dir", "networks", "--source", "file:pods.json", "-o", "json"}
	plan := run(t, n.dir, nil, append([]string{"plan"}, args...)...).stdout
	check := run(t, n.dir, nil, append([]string{"check", "--cni-dir", "."}, args...)...).stdout
	for _, row := range []struct{ reason, of, text, old, new string }{
		{"a verdict that the design does not have", "report", plan, `"verdict": "leaked"`, `"verdict": "orphaned"`},
		{"another version", "report", plan, `"schemaVersion": 1`, `"schemaVersion": 2`},
		{"a field of another name", "report", plan, `"duration"`, `"seconds"`},
		{"no address", "report", plan, `"ip": "10.244.1.2"`, `"ip": "10.244.1"`},
		{"no verdict where somebody was asked", "report", plan, `"verdict": "leaked",`, ``},
		{"an unknown word", "check", check, `"word": "FULL"`, `"word": "EMPTY"`},
		{"a report that is none", "check", check, `"looks": 1`, `"looks": 3`},
		{"a command of another program", "check", check, `"run": "hostlocal-gc `, `"run": "rm `},
	} {
		bad := strings.Replace(row.text, row.old, row.new, 1)
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(bad))
		if err != nil || bad == row.text || schema(t, row.of).Validate(value) == nil {
			t.Errorf("%s passes, or %q is not in it (%v):\n%s", row.reason, row.old, err, row.text)
		}
	}
}

// The schema has exactly the library's verdicts and reasons, and the words of findings.
func TestSchemaWords(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "report.schema.json"))
	var compact bytes.Buffer
	must(t, errors.Join(err, json.Compact(&compact, text)))
	var verdicts []gc.Verdict
	for v := gc.InUse; v <= gc.Failed; v++ {
		verdicts = append(verdicts, v)
	}
	var reasons []gc.Reason
	for r := gc.Reason(1); r.String() != ""; r++ {
		reasons = append(reasons, r)
	}
	for _, words := range []any{verdicts, reasons, diagnose.Words(), diagnose.AllCauses()} {
		want, err := json.Marshal(words)
		if err != nil || !bytes.Contains(compact.Bytes(), want) {
			t.Errorf("report.schema.json lacks %s: %v", want, err)
		}
	}
}

// An empty data directory is no error. Where no source answers, what was not judged did not fail.
func TestJSON(t *testing.T) {
	args := []string{"plan", "--data-dir", "networks", "--source", "file:-", "-o", "json"}
	empty := run(t, newNode(t).dir, strings.NewReader("[{}]"), args...)
	if r := readReport(t, empty.stdout); len(r.Networks)+len(r.Reservations) > 0 || empty.status != statusDone {
		t.Errorf("exit status %d and %q, want a report of nothing", empty.status, empty.stdout)
	}
	got := run(t, fullNode(t).dir, strings.NewReader("["), args...)
	all := readReport(t, got.stdout).Reservations
	if got.status != statusError || len(all) != 13 || strings.Contains(got.stdout, `"release-failed"`) {
		t.Errorf("exit status %d, %d reservations:\n%s", got.status, len(all), got.stdout)
	}
}

// A release takes what its plan shows as leaked, and leaves the rest as it is.
func TestVerdicts(t *testing.T) {
	n := mixedNode(t)
	flags := strings.Fields("--data-dir networks --network podnet --source file:pods.json --min-age 48h -o json")
	want := map[string]string{
		"10.244.1.2": "in-use", "10.244.1.3": "leaked unknown", "10.244.1.4": "conflict", "10.244.1.5": "malformed",
		"10.244.1.6": "leaked torn", "10.244.1.7": "starting", "10.244.1.8": "young", "10.244.1.9": "foreign",
	}
	for _, name := range []string{"plan", "release"} {
		out := run(t, n.dir, nil, append([]string{name}, flags...)...)
		got := make(map[string]string)
		for _, e := range readReport(t, out.stdout).Reservations {
			if e.Network == "podnet" {
				got[e.IP.String()] = strings.TrimSpace(e.Verdict + " " + e.Cause)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || out.status != statusDone {
			t.Errorf("%s: exit status %d, verdicts and causes (-want +got):\n%s", name, out.status, diff)
		}
		for ip, v := range want {
			if there := n.there("podnet/" + ip); there != !strings.HasPrefix(v, "released") {
				t.Errorf("%s: %s is %s: is its file there? %v", name, ip, v, there)
			}
			want[ip] = strings.Replace(v, "leaked", "released", 1)
		}
	}
}
