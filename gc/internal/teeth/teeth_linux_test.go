// SPDX-License-Identifier: Apache-2.0

package teeth

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var seeds = flag.Int("teeth.seeds", 100, "how many seeds the simulator gets to find that a guard is missing")

// TestTeeth takes out one guard at a time, in a copy of its file that only the
// compiler sees, and fails unless a hazard test or the simulator turns red. It
// prints the table of what found what.
func TestTeeth(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if out, err := run(t.Context(), root, "", "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(dir, "whole"), "./gc"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if red, _ := hazards(t.Context(), filepath.Join(dir, "whole"), root); len(red) > 0 {
		t.Fatalf("with all guards in place these are red: %v", red)
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
				bin := filepath.Join(dir, fmt.Sprint("without", i))
				defer func() { _ = os.Remove(bin) }() // the folder goes in the end, but fifty binaries are large
				overlay := without(t, root, dir, i, g)
				if out, err := run(t.Context(), root, overlay, "test", "-c", "-ldflags=-s -w", "-o", bin, "./gc"); err != nil {
					t.Fatalf("the code without the guard does not compile; mend the table: %v\n%s", err, out)
				}
				red, hung := hazards(t.Context(), bin, root)
				needed := simulate(t.Context(), bin, root)
				if len(red) == 0 && !hung && needed == "" {
					t.Errorf("nothing turned red")
				}
				found := strings.Join(red, ", ")
				if hung {
					found = strings.TrimPrefix(found+", and a test hangs", ", ")
				}
				mu.Lock()
				rows[i] = fmt.Sprintf("| %s | %s | %s | %s |", g.rule, g.guard, orDash(found), orDash(needed))
				mu.Unlock()
			})
		}
	})
	table := "| rule or hazard | without the guard: | red hazard tests | seeds until the simulator finds it |\n|---|---|---|---|\n" +
		strings.Join(rows, "\n") + "\n"
	fmt.Println(table)
	if path := os.Getenv("HOSTLOCAL_GC_FIGURES"); path != "" { // .ci/run prints it in the end
		if err := os.WriteFile(path+".teeth", []byte(table), 0o600); err != nil {
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

// without writes the file without the guard and an overlay that puts it in the
// place of the file.
func without(t *testing.T, root, dir string, i int, g guard) (overlay string) {
	t.Helper()
	file := filepath.Join(root, filepath.FromSlash(g.file))
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(content), g.code); n != 1 {
		t.Fatalf("%s has the guard's code %d times, want once; mend the table:\n%s", g.file, n, g.code)
	}
	mutated := filepath.Join(dir, fmt.Sprintf("mutated%d.go", i))
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(content), g.code, g.without, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, fmt.Sprintf("overlay%d.json", i))
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

func run(ctx context.Context, root, overlay string, args ...string) (string, error) {
	if overlay != "" {
		args = slices.Insert(slices.Clone(args), 1, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: TestHazard(\d\d)`)

// hazards runs the hazard tests and returns the numbers of the red ones, and
// whether one hung or took the process down with it.
func hazards(ctx context.Context, bin, root string) (red []string, hung bool) {
	out, err := start(ctx, bin, root, "-test.run=^TestHazard", "-test.timeout=30s", "-test.skip=Faults")
	for _, m := range failedTest.FindAllStringSubmatch(out, -1) {
		if !slices.Contains(red, m[1]) {
			red = append(red, m[1])
		}
	}
	return red, err != nil && len(red) == 0
}

var afterSeeds = regexp.MustCompile(`after (\d+) seeds`)

// simulate runs the simulator and returns how many seeds it took to find a
// violation, or "".
func simulate(ctx context.Context, bin, root string) string {
	out, err := start(ctx, bin, root, "-test.run=^TestSimulator$", fmt.Sprintf("-sim.seeds=%d", *seeds), "-sim.shrink=false", "-test.timeout=60s")
	if err == nil {
		return ""
	}
	if m := afterSeeds.FindStringSubmatch(out); m != nil {
		return m[1]
	}
	return "hangs or dies"
}

func start(ctx context.Context, bin, root string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = filepath.Join(root, "gc")
	// What a killed one leaves goes with this test, and its figures are nobody's.
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(bin), "HOSTLOCAL_GC_FIGURES=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
