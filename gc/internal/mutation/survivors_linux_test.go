// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"context"
	"flag"
	"fmt"
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
	y := tally{t: t, dir: dir, named: named}
	each(mine, func(i int) {
		how := "no test fails"
		if len(tr.reaches[i+1]) == 0 {
			how = "no test reaches it"
		}
		y.add(v.all[i].key, v.all[i].at, tr.found(i+1), how)
	})
	return y.line("variants")
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

// found reports whether some test fails with a variant. It runs the quick ones first. A test
// that does not end in time fails, too.
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
		run := "-test.run=^(" + strings.Join(tests[:k], "|") + ")$"
		if _, err := tr.run([]string{fmt.Sprint("MUTANT=", n)}, limit, run, "-test.failfast"); err != nil {
			return true
		}
		tests = tests[k:]
	}
	return false
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
