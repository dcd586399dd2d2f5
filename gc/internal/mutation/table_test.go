// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the directory of the module.
const root = "../../.."

// unguarded are hazards with tests in these packages, and without a single guard that could
// be removed.
var unguarded = map[string]string{
	"10": "an owner is a container ID, and no code compares pod names",
	"20": "a reservation without a holder is released, which needs no guard",
	"33": "it depends on the sources: see their matrix",
}

// TestGuards fails if a guard's code is not exactly once in its file, if one of its tests does not
// exist, or if no guard is removed for a hazard with tests here. TestMutations shows that the tests
// fail. With -v it prints the table of guards.
func TestGuards(t *testing.T) {
	tests := testNames(t)
	guarded := make(map[string]bool) // the hazards of which a test fails without a guard
	for i, g := range guards {
		if pkg := packageOf(t, tests, i); testing.Verbose() {
			t.Logf("%s, hazards %q: %s: %s: %s of %s", g.rule, g.hazards, g.file, sentence(i), g.tests, pkg)
		}
		if n := strings.Count(read(t, root, g.file), g.code); n != 1 {
			t.Errorf("%s has the code of this guard %d times, want once; update the table:\n%s: %s\n%s", g.file, n, g.rule, sentence(i), g.code)
		}
		for _, h := range strings.Fields(g.hazards) {
			guarded[h] = guarded[h] || slices.ContainsFunc(strings.Fields(g.tests), func(test string) bool { return hazardOf(test) == h })
		}
	}
	for _, test := range slices.Concat(tests["gc"], tests["hostlocal"], tests["podsource"]) {
		if h := hazardOf(test); h != "" && !guarded[h] && unguarded[h] == "" {
			t.Errorf("there is no guard of hazard %s without which %s, or another of its tests, fails", h, test)
		}
	}
}

// cases is how the name of a script's test begins.
const cases = "TestCases/"

// hazardOf returns the number in the name of a hazard's test or script, or "" if it is no such test.
func hazardOf(test string) string {
	name, ok := strings.CutPrefix(test, "TestHazard")
	if !ok {
		name, _ = strings.CutPrefix(test, cases)
	}
	return name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
}

// sentence returns the description of a guard, with that of the row which it continues.
func sentence(i int) string {
	base := i
	for strings.HasPrefix(guards[base].guard, "...") {
		base--
	}
	if base == i {
		return guards[i].guard
	}
	return guards[base].guard + " " + guards[i].guard
}

// packageOf returns the package of a guard's tests: that of the guard, or gc.
func packageOf(t *testing.T, tests map[string][]string, i int) string {
	t.Helper()
	g := guards[i]
	for _, pkg := range []string{path.Dir(g.file), "gc"} {
		missing := func(test string) bool { return !slices.Contains(tests[pkg], test) }
		if g.tests != "" && !slices.ContainsFunc(strings.Fields(g.tests), missing) {
			return pkg
		}
	}
	t.Fatalf("%s %s: neither %s nor gc has all of its tests: %q", g.rule, sentence(i), path.Dir(g.file), g.tests)
	return ""
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testNames returns the tests of the packages with guards.
func testNames(t *testing.T) map[string][]string {
	t.Helper()
	tests := make(map[string][]string)
	for _, pkg := range []string{"gc", "hostlocal", "podsource"} {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, m := range testFunc.FindAllStringSubmatch(read(t, file), -1) {
				tests[pkg] = append(tests[pkg], m[1])
			}
		}
	}
	scripts, err := filepath.Glob(filepath.Join(root, "gc/testdata/cases/*.txt"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts of cases: %v", err)
	}
	for _, script := range scripts {
		tests["gc"] = append(tests["gc"], cases+strings.TrimSuffix(filepath.Base(script), ".txt"))
	}
	return tests
}

// read returns the content of a file.
func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
