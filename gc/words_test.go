// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// update makes tests write the golden files and the matrix of sources, instead of comparing
// with them.
var update = flag.Bool("update", false, "write golden files, and the matrix of sources into the README")

// golden compares text with a file in testdata. With -update it writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; go test -update writes it (-want +got):\n%s", path, diff)
	}
}
