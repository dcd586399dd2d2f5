// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The words of verdicts and reasons, with the verdict and the rule of each
// reason, are a contract: who parses a report, or has a metric by them, depends
// on them. What is new is added to the golden file; nothing in it changes.
func TestWords(t *testing.T) {
	var got strings.Builder
	fmt.Fprintf(&got, "verdicts:\n")
	for _, v := range Verdicts() {
		fmt.Fprintf(&got, "%s\n", v)
	}
	fmt.Fprintf(&got, "\nreasons, with their verdicts and rules:\n")
	for i := range reasons {
		r := Reason(i)
		fmt.Fprintf(&got, "%-26s %-10s %s\n", r, r.Verdict(), r.Rule())
	}
	golden(t, "words.txt", got.String())
}

// Every word comes back as what it stands for, and no other does.
func TestWordsComeBack(t *testing.T) {
	for _, v := range Verdicts() {
		var back Verdict
		if err := roundTrip(v, &back); err != nil || back != v {
			t.Errorf("%s comes back as %s (error %v)", v, back, err)
		}
	}
	seen := make(map[string]bool)
	used := make(map[Verdict]bool)
	for i := range reasons {
		r, back := Reason(i), Reason(0)
		if err := roundTrip(r, &back); err != nil || back != r {
			t.Errorf("%s comes back as %s (error %v)", r, back, err)
		}
		if r.Text() == "" || r.Rule() == "" || seen[r.String()] {
			t.Errorf("reason %d, %q, has no text or no rule, or another one has its word", i, r)
		}
		seen[r.String()], used[r.Verdict()] = true, true
	}
	for _, v := range Verdicts() {
		if !used[v] {
			t.Errorf("no reason leads to %s", v)
		}
	}
	for _, word := range []string{"", "nonsense", "In-Use", "verdict-200", "reason-200"} {
		var v Verdict
		var r Reason
		if err := v.UnmarshalText([]byte(word)); err == nil {
			t.Errorf("%q is verdict %s", word, v)
		}
		if err := r.UnmarshalText([]byte(word)); err == nil {
			t.Errorf("%q is reason %s", word, r)
		}
	}
	// One that a later version may have.
	if v := Verdict(200); v.String() != "verdict-200" {
		t.Errorf("an unknown verdict is %q", v)
	}
	if r := Reason(200); r.Verdict() != Failed || r.String() != "reason-200" || r.Rule() != "" {
		t.Errorf("an unknown reason is %s, %q, %q", r.Verdict(), r, r.Rule())
	}
}

func roundTrip(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}
