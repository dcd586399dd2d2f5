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
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const gremlinsModule = "github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0"

var gremlinsIn = flag.String("gremlins", "", "the `PACKAGES` of the root module in which TestGremlins changes operators, as gc,hostlocal")

// TestGremlins changes a package's operators with gremlins. It fails if a mutant lives that
// testdata/named.txt does not name with a reason, or if that names one that a test finds.
// Gremlins does not try mutants outside of the blocks of the coverage profile, such as cases
// and constants, and counts time-outs as found. This test tries both kinds itself.
//
//	go test ./gc/internal/mutation -run TestGremlins -gremlins hostlocal -timeout 2h -v
func TestGremlins(t *testing.T) {
	named := readNamed(t)
	eachPackage(t, *gremlinsIn, "gremlins", func(t *testing.T, dir string) string {
		tmp, tree := copyTree(t)
		g := &gremlins{t, tmp, tree, dir}
		g.writeScript()
		g.addUnnoticed()
		return g.compare(g.run(), named[dir])
	})
}

type gremlins struct {
	t              *testing.T
	tmp, tree, dir string // a directory for output, the copy of the repository, the package in it
}

// environ returns the environment of tests. Vet would report some mutants, and cached results
// would give wrong times.
func (g *gremlins) environ() []string {
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-short -count=1 -vet=off -exec="+g.script()+" -skip="+tooSlow, "TMPDIR="+g.tmp, "HOSTLOCAL_GC_FIGURES=")
}

// script is what runs a binary of tests. Gremlins has them write into a directory that
// only root may enter, and some tests give up root's rights.
func (g *gremlins) script() string { return filepath.Join(g.tmp, "exec") }

func (g *gremlins) writeScript() {
	g.t.Helper()
	if err := os.WriteFile(g.script(), []byte("#!/bin/sh\nunset GOTMPDIR\nexec \"$@\"\n"), 0o700); err != nil { //nolint:gosec // it is run
		g.t.Fatal(err)
	}
}

// run returns the status of each mutant, by its place.
func (g *gremlins) run() map[string]string {
	g.t.Helper()
	install := exec.CommandContext(g.t.Context(), "go", "install", gremlinsModule)
	install.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOBIN="+g.tmp)
	if out, err := install.CombinedOutput(); err != nil {
		g.t.Fatalf("building gremlins: %v\n%s", err, out)
	}
	output := filepath.Join(g.tmp, "gremlins.json")
	args := []string{"unleash", "--workers=2", "--timeout-coefficient=5", "--invert-negatives=false", "--output=" + output,
		"--exclude-files=/"} // directories below the package
	args = append(args, strings.Fields(goList(g.t, g.dir, "-f", "{{range .IgnoredGoFiles}}--exclude-files=^{{.}}$ {{end}}"))...) // files for other systems
	unleash := exec.CommandContext(g.t.Context(), filepath.Join(g.tmp, "gremlins"), append(args, "./"+g.dir)...)
	unleash.Dir, unleash.Env = g.tree, g.environ()
	out, err := unleash.CombinedOutput()
	content, readErr := os.ReadFile(output)
	if err := errors.Join(err, readErr); err != nil {
		g.t.Fatalf("running gremlins: %v\n%s", err, out)
	}
	g.t.Logf("%s", out)
	var report struct {
		Files []struct {
			Name      string `json:"file_name"`
			Mutations []struct {
				Type, Status string
				Line, Column int
			}
		}
	}
	if err := json.Unmarshal(content, &report); err != nil {
		g.t.Fatalf("reading the report of gremlins: %v\n%s", err, content)
	}
	statuses := make(map[string]string)
	for _, f := range report.Files {
		for _, m := range f.Mutations {
			statuses[fmt.Sprintf("%s %s:%d:%d", m.Type, f.Name, m.Line, m.Column)] = m.Status
		}
	}
	return statuses
}

// unnoticed is code whose mutants no test finds. If gremlins reports them as found, tests fail
// in its work directory without a mutant, too.
const unnoticed = "gremlins_unnoticed"

// addUnnoticed adds that code to the package, and a test that runs it.
func (g *gremlins) addUnnoticed() {
	g.t.Helper()
	head := "package " + strings.TrimSpace(goList(g.t, g.dir, "-f", "{{.Name}}"))
	file := filepath.Join(g.tree, g.dir, unnoticed)
	if err := errors.Join(
		os.WriteFile(file+".go", []byte(head+"\n\nfunc gremlin(a, b int) bool { return a < b }\n"), 0o600),
		os.WriteFile(file+"_test.go", []byte(head+"\n\nimport \"testing\"\n\nfunc TestGremlin(*testing.T) { gremlin(1, 2) }\n"), 0o600),
	); err != nil {
		g.t.Fatal(err)
	}
}

// compare reports mutants that survive without a name, and returns a line of figures.
func (g *gremlins) compare(statuses map[string]string, named map[string]string) string {
	g.t.Helper()
	v, all := tokenMutants(g.t, g.dir)
	var mutants []tokenMutant
	for _, m := range all { // gremlins counts those that do not compile as found
		if v.compiles(m.path, m.mutated()) {
			mutants = append(mutants, m)
			continue
		}
		if statuses[m.at] == "LIVED" {
			g.t.Errorf("gremlins reports that tests pass with a mutant that does not compile: %s", m.at)
		}
		delete(statuses, m.at)
	}
	found := make([]bool, len(mutants))
	var again []int
	for i, m := range mutants {
		_, isNamed := named[m.key]
		switch status := statuses[m.at]; {
		case status == "LIVED":
		case status == "NOT COVERED", status == "TIMED OUT", status == "KILLED" && isNamed: // on a busy machine another test may have failed
			again = append(again, i)
		case status == "KILLED" && i%checkEvery == 0: // a failure of any kind, also of the machine, kills
			again = append(again, i)
		case status == "KILLED":
			found[i] = true
		default:
			g.t.Errorf("gremlins reports %q for %s", status, m.at)
		}
		delete(statuses, m.at)
	}
	if len(statuses) == 0 {
		g.t.Errorf("gremlins reports no mutant of %s", unnoticed)
	}
	for at, status := range statuses {
		switch {
		case !strings.Contains(at, unnoticed):
			g.t.Errorf("gremlins makes a mutant that tokenMutants does not: %s", at)
		case status != "LIVED":
			g.t.Errorf("gremlins reports %s for a mutant that no test notices, so tests fail without one: %s", status, at)
		}
	}
	// In g.found's environment, with its time limit: before, and after, when the machine may lack
	// something.
	for _, indexes := range [][]int{nil, again} {
		each(indexes, func(i int) { found[i] = g.found(i, &mutants[i]) })
		same := mutants[0]
		if same.be = same.is; g.found(len(mutants), &same) {
			g.t.Errorf("the tests of %s fail or take too long without a mutant", g.dir)
		}
	}
	y := tally{t: g.t, dir: g.dir, named: named}
	for i, m := range mutants {
		y.add(m.key, m.at, found[i], "no test fails")
	}
	return y.line("mutants of gremlins", fmt.Sprintf(", %d more do not compile", len(all)-len(mutants)))
}

// Of the mutants that gremlins found, one in checkEvery is tried again.
const checkEvery = 10

// found reports whether some test fails with a mutant or does not end.
func (g *gremlins) found(n int, m *tokenMutant) bool {
	file := filepath.Join(g.tmp, fmt.Sprintf("%d.go", n))
	overlay := filepath.Join(g.tmp, fmt.Sprintf("%d.json", n))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(g.tree, g.dir, filepath.Base(m.path)): file}})
	if err := errors.Join(err, os.WriteFile(file, m.mutated(), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		g.t.Error(err)
		return false
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-failfast", "-timeout=2m", "./"+g.dir)
	cmd.Dir, cmd.Env = g.tree, g.environ()
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	fails, err := hasFailed(string(out), err)
	if err != nil {
		g.t.Errorf("running the tests with another operator at %s: %v\n%s", m.at, err, out)
	}
	return fails
}
