// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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
	shard      = flag.String("variants.shard", "1/1", "which part of the variants: `I/N`")
	onlyKeys   = flag.String("variants.only", "", "only variants whose keys match this `REGEXP`")
)

// tooSlow are tests that take many seconds and find no more than others.
const tooSlow = "Simulator|Faults|Killed(At(Any|Every)|$)|Fleet|Matrix|Dependencies|EveryHazard|HazardTable|Stress|Chaos|Soak|PairsWithKills|ManyNamespaces"

// TestVariants changes a package's code in one place at a time, in a copy of the repository.
// It fails if no test of the package fails, unless testdata/named.txt names the change with a
// reason. It also fails if that file names a change with which a test does fail.
//
//	go test ./gc/internal/mutation -run TestVariants -variants podsource/netns -timeout 2h -v
func TestVariants(t *testing.T) {
	named := readNamed(t)
	eachPackage(t, *variantsIn, "variants", func(t *testing.T, dir string) string { return tryVariants(t, dir, named[dir]) })
}

// A trial runs the variants of one package.
type trial struct {
	t        *testing.T
	dir, tmp string // of the package, and for output
	binary   string
	programs string                   // the directory of programs that the tests run, if examples/internal/cnitest builds them
	took     map[string]time.Duration // of each test without a change
	reaches  map[int][]string         // the tests that reach a variant, by its number
	leftOut  int                      // tests that fail with the switches in the code
}

// tryVariants tries the variants of a package, two at a time, and returns a line of figures.
func tryVariants(t *testing.T, dir string, named map[string]string) string {
	v := makeVariants(t, dir)
	tmp, tree := copyTree(t)
	tr := &trial{t: t, tmp: tmp, took: make(map[string]time.Duration), reaches: make(map[int][]string)}
	tr.build(v, tree, dir)
	tr.look()
	var mine []int
	only, part, parts := regexp.MustCompile(*onlyKeys), 1, 1
	if _, err := fmt.Sscanf(*shard, "%d/%d", &part, &parts); err != nil || part < 1 || part > parts {
		t.Fatalf("-variants.shard %q is not I/N", *shard)
	}
	for i := range v.all {
		if i%parts == part-1 && only.MatchString(v.all[i].key) {
			mine = append(mine, i)
		}
	}
	if *onlyKeys != "" && len(mine) == 0 {
		t.Fatalf("-variants.only: no variant of %s in shard %s has a key that matches %q", dir, *shard, *onlyKeys)
	}
	y := tally{t: t, dir: dir, named: named}
	each(mine, func(i int) {
		how := "no test fails"
		if len(tr.reaches[i+1]) == 0 {
			how = "no test reaches it"
		}
		y.add(v.all[i].key, v.all[i].at, tr.found(i+1), how)
	})
	tr.passesStill()
	return y.line("variants", fmt.Sprintf(", in %d of %d functions, %d tests left out", v.changed, v.functions, tr.leftOut))
}

// each calls f with each of all, two at a time.
func each(all []int, f func(int)) {
	work := make(chan int)
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range work {
				f(i)
			}
		}()
	}
	for _, i := range all {
		work <- i
	}
	close(work)
	wg.Wait()
}

// build builds the binary of the package's tests in the copy, with all variants in it.
// Programs that the tests build there have them, too.
func (tr *trial) build(v *variants, tree, dir string) {
	tr.t.Helper()
	for path, content := range v.files {
		if err := os.WriteFile(filepath.Join(tree, dir, filepath.Base(path)), content, 0o644); err != nil {
			tr.t.Fatal(err)
		}
	}
	tr.dir, tr.binary, tr.programs = filepath.Join(tree, dir), filepath.Join(tr.tmp, "variants.test"), filepath.Join(tr.tmp, "programs")
	if err := os.Mkdir(tr.programs, 0o755); err != nil {
		tr.t.Fatal(err)
	}
	cmd := exec.CommandContext(tr.t.Context(), "go", "test", "-c", "-vet=off", "-o", tr.binary, "./"+dir)
	cmd.Dir, cmd.Env = tree, environ(tr.t, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		tr.t.Fatalf("the switches do not compile; correct the operators: %v\n%s", err, out)
	}
}

// look runs each test alone, and records how long it takes and which variants it reaches. It
// leaves out a test that fails with the switches in the code.
func (tr *trial) look() {
	tr.t.Helper()
	out, err := tr.run(nil, 10*time.Minute, "-test.list=^(Test|Example|Fuzz)") // builds the programs
	if err != nil {
		tr.t.Fatalf("listing the tests: %v\n%s", err, out)
	}
	slow := regexp.MustCompile(tooSlow)
	var tests []string
	for _, name := range strings.Fields(out) {
		if !slow.MatchString(name) {
			tests = append(tests, name)
		}
	}
	var mu sync.Mutex
	indexes := make([]int, len(tests))
	for i := range indexes {
		indexes[i] = i
	}
	each(indexes, func(i int) {
		file := filepath.Join(tr.tmp, fmt.Sprintf("reached%d", i))
		if err := os.WriteFile(file, nil, 0o666); err != nil {
			tr.t.Error(err)
			return
		}
		_ = os.Chmod(file, 0o666) // despite the umask, for tests that give up root's rights
		begun := time.Now()
		out, err := tr.run([]string{"MUTANTS_REACHED=" + file}, 2*time.Minute, "-test.run=^"+tests[i]+"$")
		reached, readErr := os.ReadFile(file)
		mu.Lock()
		defer mu.Unlock()
		tr.took[tests[i]] = time.Since(begun)
		if err != nil || readErr != nil {
			tr.leftOut++
			tr.t.Logf("left out: %s fails without a change: %v, %v\n%s", tests[i], err, readErr, out)
			return
		}
		for _, text := range slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(reached))))) {
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
		out, fails := tr.fails(n, limit, tests[:k])
		if fails && tr.confirmed(n, limit, tests[:k], out) {
			return true
		}
		tests = tests[k:]
	}
	return false
}

// confirmed reports whether tests that failed with a variant, with some output, failed because of
// it, and neither by chance nor because of another test. The one that the output names fails again,
// alone, as it passes alone without the variant. Or all fail together again, or took far too long
// the first time, and pass without the variant.
func (tr *trial) confirmed(n int, limit time.Duration, tests []string, out string) bool {
	for _, m := range failedTest.FindAllStringSubmatch(out, -1) {
		if _, fails := tr.fails(n, limit, m[1:]); fails {
			return true
		}
	}
	if !strings.Contains(out, "panic: test timed out") {
		if _, fails := tr.fails(n, limit, tests); !fails {
			return false
		}
	}
	out, fails := tr.fails(noVariant, limit, tests)
	if fails {
		tr.t.Errorf("tests of %s that pass alone fail together without a change: %s\n%s", tr.dir, strings.Join(tests, " "), out)
	}
	return !fails
}

// noVariant is the number of no variant.
const noVariant = 0

// passesStill fails if the tests no longer pass without a variant, as when the machine lacks
// something now, or variants left something behind: then any test may have found any variant.
func (tr *trial) passesStill() {
	tr.t.Helper()
	for _, tests := range tr.reaches {
		tr.reaches[noVariant] = append(tr.reaches[noVariant], tests...)
	}
	tr.reaches[noVariant] = slices.Compact(slices.Sorted(slices.Values(tr.reaches[noVariant])))
	if tr.found(noVariant) {
		tr.t.Errorf("after the last variant the tests of %s fail without one", tr.dir)
	}
}

// fails runs tests in one process and reports whether one of them fails with a variant. A test
// that does not end in time fails, too.
func (tr *trial) fails(n int, limit time.Duration, tests []string) (out string, fails bool) {
	run := "-test.run=^(" + strings.Join(tests, "|") + ")$"
	for range 2 {
		var err error
		out, err = tr.run([]string{fmt.Sprint("MUTANT=", n)}, limit, run, "-test.failfast")
		if fails, err = hasFailed(out, err); err == nil {
			return out, fails
		}
	}
	// The variant may end the process. A full disk would do so without it, too.
	if control, err := tr.run(nil, limit, run, "-test.failfast"); err != nil {
		tr.t.Errorf("the tests of %s end without a result, also without a change: %v\n%s", tr.dir, err, control)
		return out, false
	}
	return out, true
}

// failing matches what a process with a failed test prints.
var failing = regexp.MustCompile(`(?m)^\s*--- FAIL: |^panic: |^fatal error: `)

// hasFailed reports whether a process with tests that ended with some output and error shows
// a test that failed. An end that shows none, as that of a process that could not be started
// or was killed, is an error.
func hasFailed(out string, err error) (bool, error) {
	switch {
	case err == nil:
		return false, nil
	case failing.MatchString(out):
		return true, nil
	}
	return false, fmt.Errorf("it ended without a result: %w", err)
}

func (tr *trial) run(env []string, limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(tr.t.Context(), limit+5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, tr.binary, append(args, "-test.short", fmt.Sprint("-test.timeout=", limit))...)
	cmd.Dir = tr.dir
	// The files of a killed process are removed with the test's directory. Its figures
	// must not replace those of this test.
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+tr.tmp, "HOSTLOCAL_GC_FIGURES=", "HOSTLOCAL_GC_CNITEST_PROGRAMS="+tr.programs)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Only an end that shows a failed test counts as found.
func TestHasFailed(t *testing.T) {
	for _, c := range []struct {
		reason, out string
		err         error
		want        bool
		unknown     bool
	}{
		{"all tests pass", "PASS\n", nil, false, false},
		{"a test fails", "--- FAIL: TestA (0.00s)\n    a_test.go:1: wrong\nFAIL\n", errors.New("exit status 1"), true, false},
		{"a test panics", "panic: index out of range\n", errors.New("exit status 2"), true, false},
		{"a test does not end", "panic: test timed out after 1s\n", errors.New("exit status 2"), true, false},
		{"the runtime gives up", "fatal error: all goroutines are asleep - deadlock!\n", errors.New("exit status 2"), true, false},
		{"the process was killed", "", errors.New("signal: killed"), false, true},
		{"it could not be started", "", fs.ErrNotExist, false, true},
		{"the package could not be built, as on a full disk", "FAIL\tpackage [build failed]\n", errors.New("exit status 1"), false, true},
		{"a failure is only quoted", "    a_test.go:1: it says: panic: no\n", errors.New("exit status 1"), false, true},
	} {
		got, err := hasFailed(c.out, c.err)
		if got != c.want || (err != nil) != c.unknown {
			t.Errorf("%s: %t, %v", c.reason, got, err)
		}
	}
}
