// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	find = flag.Bool("mutation.find", false, "run all quick tests without each guard, and say which fail")
)

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
	guarded := make(map[string]bool) // the hazards of which a test fails without a guard
	for i, g := range guards {
		t.Logf("%s, hazards %s: %s: %s: %s in %s", g.rule, g.hazards, sentence(i), g.tests, packageOf(t, g), g.file)
		if n := strings.Count(source(t, g.file), g.code); n != 1 {
			t.Errorf("%s has the code of this guard %d times, want once; update the table:\n%s: %s\n%s", g.file, n, g.rule, sentence(i), g.code)
		}
		for _, h := range strings.Fields(g.hazards) {
			guarded[h] = guarded[h] || strings.Contains(g.tests, "TestHazard"+h)
		}
	}
	for _, test := range slices.Concat(tests(t, "gc"), tests(t, "hostlocal"), tests(t, "podsource")) {
		h, numbered := strings.CutPrefix(test, "TestHazard")
		if numbered && !guarded[h[:2]] && unguarded[h[:2]] == "" {
			t.Errorf("there is no guard of hazard %s without which %s, or another of its tests, fails", h[:2], test)
		}
	}
}

// source returns the content of a file of the module.
func source(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
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
func packageOf(t *testing.T, g guard) string {
	t.Helper()
	dir := path.Dir(g.file)
	for _, pkg := range []string{dir, "gc"} {
		there := tests(t, pkg)
		if missing := func(test string) bool { return !slices.Contains(there, test) }; g.tests != "" && !slices.ContainsFunc(strings.Fields(g.tests), missing) {
			return pkg
		}
	}
	if !*find {
		t.Fatalf("%s %s: neither %s nor gc has all of its tests: %q", g.rule, g.guard, dir, g.tests)
	}
	return dir
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

var testsOf sync.Map // the names of tests by package, which every guard needs

// tests returns the tests of a package.
func tests(t *testing.T, pkg string) (names []string) {
	t.Helper()
	if known, ok := testsOf.Load(pkg); ok {
		return known.([]string)
	}
	defer func() { testsOf.Store(pkg, names) }()
	files, err := fs.Glob(os.DirFS(filepath.Join(root(t), pkg)), "*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(root(t), pkg, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(content, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// root returns the directory of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
