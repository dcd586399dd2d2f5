// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var seeds = flag.Int("mutation.seeds", 0, "how many seeds the simulator tries to find a missing guard; 0: it is not run")

// slow are tests that find no more than others, or that read the source.
const slow = "Faults|Killed|Fleet|Dependencies|EveryHazard|Matrix|Simulator|Fuzz|Thousands|18APass|TestU[0-9]"

// TestMutations removes one guard at a time, in a copy of its file that only the compiler
// reads, and fails unless the guard's tests fail. It prints how many seeds the simulator
// needs to find the same.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the packages many times: run it without -short")
	}
	m := &mutations{t.TempDir(), make(map[string]testFiles)}
	if err := os.Chmod(filepath.Dir(m.dir), 0o755); err != nil { // for tests that give up root's rights
		t.Fatal(err)
	}
	for _, pkg := range []string{"gc", "hostlocal", "podsource"} {
		m.build(t, "", pkg, "whole-"+pkg)
		m.tests[pkg] = parseTests(t, filepath.Join(root(t), pkg))
	}
	rows := make([]string, len(guards))
	var mu sync.Mutex
	slots := make(chan struct{}, 2)
	t.Run("guards", func(t *testing.T) {
		for i, g := range guards {
			t.Run(g.rule+" "+g.guard, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				needed := m.mutate(t, i, g)
				mu.Lock()
				defer mu.Unlock()
				rows[i] = fmt.Sprintf("| %s | %s | %s | %s |", g.rule, sentence(i), strings.ReplaceAll(g.tests, " ", ", "), orDash(needed))
			})
		}
	})
	table := "| rule | without the guard: | the tests that fail | seeds until the simulator finds it |\n|---|---|---|---|\n" +
		strings.Join(rows, "\n") + "\n"
	fmt.Println(table)
	if path := os.Getenv("HOSTLOCAL_GC_FIGURES"); path != "" { // .ci/run prints them at the end
		figures := fmt.Sprintf("%d guards taken out one by one, each noticed: %v\n", len(guards), !t.Failed())
		if err := errors.Join(os.WriteFile(path+".mutations", []byte(table), 0o600), os.WriteFile(path+".guards", []byte(figures), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// mutations builds and runs test binaries.
type mutations struct {
	dir   string               // of the binaries
	tests map[string]testFiles // by package
}

// mutate removes a guard and runs its tests, after it has checked that they pass with the
// guard. It returns the number of seeds that the simulator needs.
func (m *mutations) mutate(t *testing.T, i int, g guard) (needed string) {
	pkg := packageOf(t, g)
	var unneeded []string
	if !*find && *seeds == 0 {
		unneeded = m.tests[pkg].unneeded(g.tests)
	}
	overlay := m.without(t, i, g, unneeded)
	if *find {
		m.find(t, overlay, i, g)
		return ""
	}
	run := "-test.run=^(" + strings.ReplaceAll(g.tests, " ", "|") + ")$"
	if out, err := m.start(t.Context(), "whole-"+pkg, pkg, run); err != nil {
		t.Fatalf("%s fail with the guard in place:\n%s", g.tests, out)
	}
	bin := fmt.Sprint("without-", i)
	defer func() { _ = os.Remove(filepath.Join(m.dir, bin)) }() // earlier than the directory, because the binaries are large
	m.build(t, overlay, pkg, bin)
	together, err := m.start(t.Context(), bin, pkg, run)
	dies := err != nil && failing.MatchString(together) && !failedTest.MatchString(together) // without results of the other tests
	for _, test := range strings.Fields(g.tests) {
		alone, err := m.start(t.Context(), bin, pkg, "-test.run=^"+test+"$")
		if fails, err := hasFailed(alone, err); !fails {
			t.Errorf("%s does not fail alone: %v\n%s", test, err, alone)
		}
		if !dies && !strings.Contains(together, "--- FAIL: "+test+" ") {
			t.Errorf("%s does not fail beside the others\n%s", test, together)
		}
	}
	if *seeds == 0 || pkg != "gc" {
		return ""
	}
	return m.simulate(t.Context(), bin)
}

// find prints the quick tests that fail without a guard.
func (m *mutations) find(t *testing.T, overlay string, i int, g guard) {
	pkgs := []string{"gc"}
	if dir := path.Dir(g.file); dir != "gc" {
		pkgs = append(pkgs, dir)
	}
	for _, pkg := range pkgs {
		bin := fmt.Sprint("without-", i, "-", pkg)
		m.build(t, overlay, pkg, bin)
		out, err := m.start(t.Context(), bin, pkg, "-test.skip="+slow)
		_ = os.Remove(filepath.Join(m.dir, bin))
		var failed []string
		for _, f := range failedTest.FindAllStringSubmatch(out, -1) {
			failed = append(failed, f[1])
		}
		if err != nil && len(failed) == 0 {
			failed = append(failed, "the process dies: "+lastTest(out))
		}
		fmt.Printf("FIND %d\t%s\t%s\t%s\n", i, pkg, g.guard, strings.Join(failed, " "))
	}
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// lastTest returns the last test in the output of a process that ended without a result.
func lastTest(out string) string {
	if m := regexp.MustCompile(`gc\.(Test\w+)`).FindAllStringSubmatch(out, -1); len(m) > 0 {
		return m[len(m)-1][1]
	}
	return "?"
}

// without writes the file without the guard, and an overlay that replaces the file with it
// and removes the unneeded test files.
func (m *mutations) without(t *testing.T, i int, g guard, unneeded []string) (overlay string) {
	t.Helper()
	mutated := filepath.Join(m.dir, fmt.Sprintf("mutated%d.go", i))
	if err := os.WriteFile(mutated, []byte(strings.Replace(source(t, g.file), g.code, g.without, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root(t), filepath.FromSlash(g.file))
	files := map[string]string{file: mutated}
	for _, f := range unneeded {
		files[f] = ""
	}
	replace, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(m.dir, fmt.Sprintf("overlay%d.json", i))
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// build builds the binary of a package's tests.
func (m *mutations) build(t *testing.T, overlay, pkg, bin string) {
	t.Helper()
	args := []string{"test", "-c", "-vet=off", "-gcflags=-l", "-ldflags=-s -w", "-o", filepath.Join(m.dir, bin), "./" + pkg}
	if overlay != "" {
		args = slices.Insert(args, 1, "-overlay", overlay)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the code without the guard does not compile; update the table: %v\n%s", err, out)
	}
}

var afterSeeds = regexp.MustCompile(`after (\d+) seeds`)

// simulate runs the simulator and returns how many seeds it took to find a violation, or ""
// if it found none.
func (m *mutations) simulate(ctx context.Context, bin string) string {
	out, err := m.start(ctx, bin, "gc", "-test.run=^TestSimulator$", fmt.Sprintf("-sim.seeds=%d", *seeds), "-sim.shrink=false")
	if err == nil {
		return ""
	}
	if m := afterSeeds.FindStringSubmatch(out); m != nil {
		return m[1]
	}
	return "hangs or dies"
}

// start runs a binary of tests in its package's directory.
func (m *mutations) start(ctx context.Context, bin, pkg string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(m.dir, bin), append(args, "-test.timeout=60s")...)
	cmd.Dir = filepath.Join("..", "..", "..", pkg)
	// The files of a killed process are removed with the test's directory. Its figures
	// must not replace those of this test.
	cmd.Env = append(os.Environ(), "TMPDIR="+m.dir, "HOSTLOCAL_GC_FIGURES=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
