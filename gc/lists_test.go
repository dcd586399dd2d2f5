// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The words of verdicts and reasons, with the verdict and the rule of each reason, are stable:
// programs that parse reports or metrics depend on them. New ones are added to the golden file;
// nothing in it changes.
func TestWords(t *testing.T) {
	var got strings.Builder
	fmt.Fprintf(&got, "verdicts:\n")
	for v := InUse; v <= Failed; v++ {
		fmt.Fprintf(&got, "%s\n", v)
	}
	fmt.Fprintf(&got, "\nreasons, with their verdicts and rules:\n")
	last := Reason(1)
	for r := last; r.String() != ""; r++ {
		last = r
		if r.Text() == "" || r.Rule() == "" || r.Verdict().String() == "" {
			t.Errorf("reason %q has no text, rule or verdict", r)
		}
		fmt.Fprintf(&got, "%-26s %-10s %s\n", r, r.Verdict(), r.Rule())
	}
	golden(t, "words.txt", got.String())
	for _, n := range []int{0, 1 + int(last), math.MaxUint16} {
		if r := Reason(n); r.Verdict() != Failed || r.String()+r.Text()+r.Rule()+Verdict(n).String()+hostlocal.OwnerState(n).String() != "" {
			t.Errorf("%d is reason %q of %s and %q, verdict %q, and owner %q", n, r, r.Rule(), r.Verdict(), Verdict(n), hostlocal.OwnerState(n))
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
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; go test -update writes it (-want +got):\n%s", path, diff)
	}
}

// hazardTest matches a test of a hazard, hazardRow a row of a table in a file of hazards, and
// hazardCase the comment of a case in a script.
var (
	hazardTest = regexp.MustCompile(`(?m)^func TestHazard(\d{2,3})`)
	hazardRow  = regexp.MustCompile(`(?m)^\t+\{"(\d{2,3}) [a-z]|\(hazard (\d{2,3})\)"`)
	hazardCase = regexp.MustCompile(`(?m)#.*\(hazard (\d{2,3})\)`)
)

// TestEveryHazardHasItsTest fails on a hazard that has no test with its number, in any
// module.
func TestEveryHazardHasItsTest(t *testing.T) {
	tested := make(map[string]bool)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		isCases := filepath.Base(filepath.Dir(path)) == "cases" // a script's name begins with a number, too
		if n := regexp.MustCompile(`^\d+-`).FindString(d.Name()); isCases && n != "" {
			tested[n[:len(n)-1]] = true
		}
		if !isCases && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		found := slices.Concat(hazardTest.FindAllSubmatch(content, -1), hazardRow.FindAllSubmatch(content, -1))
		if isCases {
			found = hazardCase.FindAllSubmatch(content, -1)
		}
		for _, m := range found {
			tested[string(bytes.Join(m[1:], nil))] = true
		}
		return err
	})
	must(t, err)
	hazards := numbers(t, "testdata/hazards.txt")
	for n := range hazards {
		if !tested[n] {
			t.Errorf("hazard %s has no test", n)
		}
	}
	for n := range tested {
		if !hazards[n] {
			t.Errorf("a test is named after hazard %s, which is not in the list", n)
		}
	}
	if len(hazards) < 79 {
		t.Errorf("the list has %d hazards, and there were 79 once", len(hazards))
	}
}

// numbers reads the first column of a list.
func numbers(t *testing.T, file string) map[string]bool {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	out := make(map[string]bool)
	for line := range strings.Lines(string(content)) {
		n, rest, ok := strings.Cut(line, "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if !ok || len(n) < 2 || len(n) > 3 || strings.TrimSpace(rest) == "" || out[n] {
			t.Fatalf("%s: bad or repeated row %q", file, line)
		}
		out[n] = true
	}
	return out
}
