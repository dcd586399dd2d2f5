// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"flag"
	"fmt"
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
	update = flag.Bool("update", false, "write gc/testdata/guards.md")
	find   = flag.Bool("mutation.find", false, "run all quick tests without each guard, and say which fail")
)

// unguarded are hazards with tests in these packages, and without a single guard that could
// be removed.
var unguarded = map[string]string{
	"10": "an owner is a container ID, and no code compares pod names",
	"20": "a reservation without a holder is released, which needs no guard",
	"33": "it depends on the sources: see their matrix",
}

// TestGuards fails if gc/testdata/guards.md is not the table of guards, if a hazard with
// tests here has no guard whose removal makes one of them fail, if a guard has no test, or if
// a guard's code is not exactly once in its file. TestMutations shows that the tests fail.
func TestGuards(t *testing.T) {
	hazards := make(map[string][]string) // the rows of each
	fails := make(map[string]bool)       // the hazards with a test of their own that fails
	for i, g := range guards {
		packageOf(t, g)
		if n := strings.Count(source(t, g.file), g.code); n != 1 {
			t.Errorf("%s has the code of this guard %d times, want once; update the table:\n%s: %s\n%s", g.file, n, g.rule, sentence(i), g.code)
		}
		named := strings.Fields(g.hazards)
		if len(named) == 0 {
			named = []string{"-"}
		}
		for _, h := range named {
			test := strings.ReplaceAll(g.tests, " ", ", ")
			for _, own := range strings.Fields(g.tests) {
				if strings.HasPrefix(own, "TestHazard"+h) {
					test, fails[h] = own, true
				}
			}
			hazards[h] = append(hazards[h], fmt.Sprintf("| %s | %s | %s: %s | %s |", h, g.rule, g.file, sentence(i), test))
		}
	}
	for _, pkg := range []string{"gc", "hostlocal", "podsource"} {
		for _, test := range tests(t, pkg) {
			h, numbered := strings.CutPrefix(test, "TestHazard")
			if numbered && !fails[h[:2]] && unguarded[h[:2]] == "" {
				t.Errorf("there is no guard of hazard %s without which %s, or another of its tests, fails", h[:2], test)
			}
		}
	}
	keys := make([]string, 0, len(hazards))
	for h := range hazards {
		keys = append(keys, h)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Compare(strings.Replace(a, "-", "~", 1), strings.Replace(b, "-", "~", 1))
	})
	var table strings.Builder
	table.WriteString("<!-- written by: go test ./gc/internal/mutation -run TestGuards -update -->\n\n" +
		"Each guard of the safety rules, the hazards that it prevents, and a test that fails without it.\n" +
		"A guard may prevent several hazards.\n\n" +
		"| hazard | rule | guard | test that fails without it |\n|---|---|---|---|\n")
	for _, h := range keys {
		table.WriteString(strings.Join(hazards[h], "\n") + "\n")
	}
	file := filepath.Join(root(t), "gc", "testdata", "guards.md")
	if *update {
		if err := os.WriteFile(file, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != table.String() {
		t.Errorf("%s differs from the table of guards; write it with: go test ./gc/internal/mutation -run TestGuards -update", file)
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
