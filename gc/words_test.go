// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The words of verdicts and reasons, with the verdict and the rule of each reason, are stable:
// programs that parse reports or metrics depend on them. New ones are added to the golden file;
// nothing in it changes.
func TestWords(t *testing.T) {
	var got strings.Builder
	fmt.Fprintf(&got, "verdicts:\n")
	for _, v := range Verdicts() {
		fmt.Fprintf(&got, "%s\n", v)
	}
	fmt.Fprintf(&got, "\nreasons, with their verdicts and rules:\n")
	seen := make(map[Reason]bool)
	for _, r := range Reasons() {
		if r.Text() == "" || r.Rule() == "" || seen[r] || !slices.Contains(Verdicts(), r.Verdict()) {
			t.Errorf("reason %q has no text, rule or verdict, or is there twice", r)
		}
		seen[r] = true
		fmt.Fprintf(&got, "%-26s %-10s %s\n", r, r.Verdict(), r.Rule())
	}
	golden(t, "words.txt", got.String())
	for _, r := range []Reason{"a-later-one", ""} {
		if r.Verdict() != Failed || r.Rule() != "" {
			t.Errorf("an unknown reason is %s, %q", r.Verdict(), r.Rule())
		}
	}
}
