// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	variantsIn = flag.String("variants", "", "the `PACKAGES` in which TestVariants changes the code, as gc,podsource/netns")
	onlyKeys   = flag.String("variants.only", "", "only variants whose keys match this `REGEXP`")
	every      = flag.Int("variants.every", 1, "only every `N`th variant, beginning with the first")
)

// tooSlow are tests that take many seconds and find no more than others.
const tooSlow = "Simulator|Explore|Faults|Killed(At(Any|Every)|$)|Matrix|Dependencies|EveryHazard|Stress|Chaos|Soak|" +
	"PairsWithKills|ManyNamespaces"

// TestVariants changes a package's code in one place at a time, in a copy of the repository.
// It fails if no test of the package fails, unless testdata/named.txt names the change with a
// reason. It also fails if that file names a change with which a test does fail, or that no longer
// exists.
//
//	go test ./gc/internal/mutation -run TestVariants -variants podsource/netns -timeout 2h -v
func TestVariants(t *testing.T) {
	named := readNamed(t)
	var figures strings.Builder
	for _, dir := range strings.FieldsFunc(*variantsIn, func(r rune) bool { return r == ',' }) {
		t.Run(dir, func(t *testing.T) { figures.WriteString(tryVariants(t, dir, named)) })
	}
	fmt.Print(figures.String())
}

// namedFile names the changes with which no test fails, each with the reason:
//
//	package: function: kind: code
//		reason
const namedFile = "testdata/named.txt"

// readNamed returns the changes that the file names, each with its package.
func readNamed(t *testing.T) map[string]bool {
	t.Helper()
	named := make(map[string]bool)
	lines := strings.Split(read(t, namedFile), "\n")
	for i, line := range lines {
		if line == "" || line[0] == '#' || line[0] == '\t' {
			continue
		}
		if i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "\t") || named[line] {
			t.Errorf("%s gives no reason for a change, or names it twice: %s", namedFile, line)
		}
		dir, _, _ := strings.Cut(line, ": ")
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			t.Errorf("%s: %q begins with no package: %v", namedFile, line, err)
		}
		named[line] = true
	}
	return named
}

// A trial runs the variants of one package.
type trial struct {
	t       *testing.T
	binary                           // has all variants
	took    map[string]time.Duration // of each test without a change
	reaches map[int][]string         // the tests that reach a variant, by its number; of no variant all tests
	leftOut int                      // tests that fail with the switches in the code
}

// noVariant is the number of no variant.
const noVariant = 0

// tryVariants tries the variants of a package, two at a time, and returns a line of figures.
func tryVariants(t *testing.T, dir string, named map[string]bool) string {
	w := newWorkDir(t)
	v := makeVariants(t, w, dir)
	var mine []int
	there := make(map[string]bool)
	for i := range v.all {
		there[dir+": "+v.all[i].key] = true
		if i%max(1, *every) == 0 && regexp.MustCompile(*onlyKeys).MatchString(v.all[i].key) {
			mine = append(mine, i)
		}
	}
	for name := range named {
		if strings.HasPrefix(name, dir+": ") && !there[name] {
			t.Errorf("%s names a change that is no longer possible; remove it: %s", namedFile, name)
		}
	}
	if len(mine) == 0 {
		t.Fatalf("-variants.every %d and -variants.only %q leave no variant of %s", *every, *onlyKeys, dir)
	}
	tr := &trial{t: t, binary: w.build(t, dir, "variants"), took: make(map[string]time.Duration), reaches: make(map[int][]string)}
	tr.args = []string{"-test.short", "-test.failfast"}
	programs := w.output("programs") // that the tests run, if examples/internal/cnitest builds them
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	tr.env = append(tr.env, "HOSTLOCAL_GC_CNITEST_PROGRAMS="+programs)
	tr.look(w)
	var mu sync.Mutex
	var found, ok, survived int
	each(len(mine), func(i int) {
		n, name := mine[i]+1, dir+": "+v.all[mine[i]].key
		is := tr.found(n)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case is && named[name]:
			t.Errorf("%s names a change with which a test fails; remove it: %s", namedFile, name)
		case is:
			found++
		case named[name]:
			ok++
		default:
			survived++
			t.Errorf("%s: none of the %d tests that reach it fails\n%s", v.all[n-1].at, len(tr.reaches[n]), name)
		}
	})
	// If the machine lacks something now, or variants left something behind, any test may have found any variant.
	if tr.found(noVariant) {
		t.Errorf("after the last variant the tests of %s fail without one", dir)
	}
	return fmt.Sprintf("%s: %d variants, %d found, %d named, %d survived (in %d of %d functions, %d tests left out)\n",
		dir, len(mine), found, ok, survived, v.changed, v.functions, tr.leftOut)
}

// look runs each test alone, and records how long it takes and which variants it reaches. It
// leaves out a test that fails with the switches in the code.
func (tr *trial) look(w workDir) {
	tr.t.Helper()
	out, err := tr.run(tr.t, 10*time.Minute, "-test.list=^(Test|Example|Fuzz)") // builds the programs
	if err != nil {
		tr.t.Fatalf("listing the tests: %v\n%s", err, out)
	}
	slow := regexp.MustCompile(tooSlow)
	tests := slices.DeleteFunc(strings.Fields(out), slow.MatchString)
	var mu sync.Mutex
	each(len(tests), func(i int) {
		file := w.output(fmt.Sprint("reached", i))
		err := errors.Join(os.WriteFile(file, nil, 0o666), os.Chmod(file, 0o666)) // despite the umask, for tests that give up root's rights
		begun := time.Now()
		out, runErr := tr.with("MUTANTS_REACHED="+file).run(tr.t, 2*time.Minute, "-test.run="+exactly(tests[i]))
		took := time.Since(begun)
		reached, readErr := os.ReadFile(file)
		mu.Lock()
		defer mu.Unlock()
		tr.took[tests[i]] = took
		if err := errors.Join(err, runErr, readErr); err != nil {
			tr.leftOut++
			tr.t.Logf("left out: %s fails without a change: %v\n%s", tests[i], err, out)
			return
		}
		for _, text := range slices.Compact(slices.Sorted(slices.Values(strings.Fields("0 " + string(reached))))) {
			if n, err := strconv.Atoi(text); err == nil {
				tr.reaches[n] = append(tr.reaches[n], tests[i])
			}
		}
	})
}

// found reports whether some test fails with a variant. It runs the quick ones first, many in
// one process.
func (tr *trial) found(n int) bool {
	const many, quick = 25, time.Second
	tests := slices.SortedFunc(slices.Values(tr.reaches[n]), func(a, b string) int { return cmp.Compare(tr.took[a], tr.took[b]) })
	for len(tests) > 0 {
		k := 0
		limit := 30 * time.Second // enough for a busy machine
		for k < len(tests) && k < many && (k == 0 || tr.took[tests[k]] < quick) {
			limit += 4 * tr.took[tests[k]]
			k++
		}
		if _, is := noticed(tr.t, tr.with(fmt.Sprint("MUTANT=", n)), tr.binary, limit, exactly(tests[:k]...)); is {
			return true
		}
		tests = tests[k:]
	}
	return false
}
