// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "write gc/testdata/guards.md")
	find   = flag.Bool("mutation.find", false, "run all quick tests without each guard, and say which fail")
)

// elsewhere are the hazards whose guards are not in gc, hostlocal or podsource:
// the package has the tests of that number.
var elsewhere = map[string]string{
	"10": "gc: no single guard, an identity is a container ID",
	"20": "gc: as 10; the rule is what is released, and not a guard",
	"23": "podsource/kube",
	"24": "podsource/checkpoint",
	"25": "podsource/checkpoint",
	"26": "podsource/checkpoint",
	"27": "podsource/cnigc",
	"33": "podsource/netns, and the matrix of sources",
	"34": "podsource/checkpoint, podsource/cnigc",
	"35": "the matrix of sources",
	"52": "podsource/checkpoint",
	"56": "podsource/kube/kubepod",
	"61": "podsource/checkpoint",
	"79": "podsource/netns",
}

// TestGuards fails when gc/testdata/guards.md is not the table of guards, when a
// hazard has no guard, or a guard no test. That each of the tests fails without
// its guard is what TestMutations shows.
func TestGuards(t *testing.T) {
	hazards := make(map[string][]string) // the rows of each
	for i, g := range guards {
		if g.test == "" {
			t.Errorf("guard %d (%s %s) has no test", i, g.rule, g.guard)
			continue
		}
		packageOf(t, g)
		named := strings.Fields(g.hazards)
		if len(named) == 0 {
			named = []string{"-"}
		}
		for _, h := range named {
			hazards[h] = append(hazards[h], fmt.Sprintf("| %s | %s | %s: %s | %s |", h, g.rule, filepath.ToSlash(g.file), sentence(i), g.test))
		}
	}
	for _, h := range listed(t, "hazards.txt") {
		_, guarded := hazards[h]
		_, other := elsewhere[h]
		if pending := slices.Contains(listed(t, "hazards-pending.txt"), h); !guarded && !other && !pending {
			t.Errorf("hazard %s has no guard in the table", h)
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
		"Each guard of the safety rules, the hazards that it stands against, and a test that fails when it is taken out.\n" +
		"A guard may stand against several hazards.\n\n" +
		"| hazard | rule | guard | test that fails without it |\n|---|---|---|---|\n")
	for _, h := range keys {
		table.WriteString(strings.Join(hazards[h], "\n") + "\n")
	}
	path := filepath.Join(root(t), "gc", "testdata", "guards.md")
	if *update {
		if err := os.WriteFile(path, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != table.String() {
		t.Errorf("%s differs from the table of guards; write it with: go test ./gc/internal/mutation -run TestGuards -update", path)
	}
}

// sentence is what a guard says, with the one that it goes on from.
func sentence(i int) string {
	text := guards[i].guard
	for strings.HasPrefix(text, "...") {
		i--
		text = guards[i].guard + " " + text
		if !strings.HasPrefix(guards[i].guard, "...") {
			break
		}
		text = strings.TrimPrefix(text, guards[i].guard+" ")
	}
	return text
}

// listed returns the numbers in a list of hazards.
func listed(t *testing.T, name string) (numbers []string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root(t), "gc", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if n, _, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(line, "#") {
			numbers = append(numbers, n)
		} else if n, _, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// packageOf returns the package that has a guard's test: that of the guard, or
// gc.
func packageOf(t *testing.T, g guard) string {
	t.Helper()
	dir := filepath.Dir(g.file)
	for _, pkg := range []string{dir, "gc"} {
		if slices.Contains(tests(t, pkg), g.test) {
			return pkg
		}
	}
	if !*find {
		t.Fatalf("neither %s nor gc has the test %s", dir, g.test)
	}
	return dir
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// tests returns the tests of a package.
func tests(t *testing.T, pkg string) (names []string) {
	t.Helper()
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

// root is the module's directory.
func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
