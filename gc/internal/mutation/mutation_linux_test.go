// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"flag"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	guardsBy   = flag.String("guards.by", "", "run the tests that match this `REGEXP`, and print which guards they notice")
	guardsArgs = flag.String("guards.args", "", "more `FLAGS` for the tests, as '-sim.seeds 100'")
)

// TestMutations takes out one guard at a time, in a copy of its file that only the compiler reads,
// and fails unless each of the guard's tests fails. With -guards.by it prints which of the guards
// other tests notice, and fails for none.
//
//	go test ./gc/internal/mutation -run TestMutations/R6 -v
//	go test ./gc/internal/mutation -run TestMutations -guards.by TestSimulator -guards.args '-sim.seeds 100' -timeout 0 -v
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the packages many times: run it without -short")
	}
	m := &mutations{newWorkDir(t), testNames(t), make(map[string]binary)}
	for pkg := range m.tests {
		m.whole[pkg] = m.build(t, pkg, "whole-"+pkg)
	}
	var all, found atomic.Int32
	each(len(guards), func(i int) {
		t.Run(guards[i].rule+" "+sentence(i), func(t *testing.T) {
			all.Add(1)
			if m.takeOut(t, i) {
				found.Add(1)
			}
		})
	})
	fmt.Printf("%d guards taken out one by one, %d noticed\n", all.Load(), found.Load())
}

type mutations struct {
	workDir
	tests map[string][]string // by package
	whole map[string]binary   // with all guards
}

// build builds the tests of a package, without inlining, which takes less time.
func (m *mutations) build(t *testing.T, pkg, name string, flags ...string) binary {
	t.Helper()
	b := m.workDir.build(t, pkg, name, append(flags, "-gcflags=-l")...)
	b.args = strings.Fields(*guardsArgs)
	return b
}

// takeOut takes out a guard and reports whether all of its tests fail then, or any of -guards.by.
func (m *mutations) takeOut(t *testing.T, i int) bool {
	g := guards[i]
	mutated, overlay := m.output(fmt.Sprintf("%d.go", i)), m.output(fmt.Sprintf("%d.json", i))
	write(t, mutated, strings.Replace(read(t, m.source(g.file)), g.code, g.without, 1))
	write(t, overlay, fmt.Sprintf(`{"Replace": {%q: %q}}`, m.source(g.file), mutated))
	run, by, limit := make(map[string][]string), "", time.Minute // regular expressions of tests, by package
	if *guardsBy == "" {
		own := packageOf(t, m.tests, i)
		for _, test := range strings.Fields(g.tests) {
			run[own] = append(run[own], exactly(test))
		}
	} else {
		limit = time.Hour
		for _, pkg := range []string{"gc", path.Dir(g.file)} {
			if slices.ContainsFunc(m.tests[pkg], regexp.MustCompile(*guardsBy).MatchString) {
				run[pkg] = []string{*guardsBy}
			}
		}
	}
	for pkg, tests := range run {
		changed := m.build(t, pkg, fmt.Sprintf("without-%d-%s", i, pkg), "-overlay", overlay)
		for _, test := range tests {
			out, is := noticed(t, changed, m.whole[pkg], limit, test)
			switch {
			case is:
				by += fmt.Sprint(" ", failedTests(out))
			case *guardsBy == "":
				t.Errorf("%s does not fail without the guard\n%s", test, out)
			}
		}
		_ = os.Remove(changed.path) // earlier than the directory, because it is large
	}
	if *guardsBy != "" {
		fmt.Printf("%s %s: noticed by:%s\n", g.rule, sentence(i), by)
	}
	return by != "" && !t.Failed()
}
