// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// A workDir has a copy of the repository's files in which code can be changed, and its output.
// Without a guard of paths, a test may write outside of its temporary directory.
type workDir string

func newWorkDir(t *testing.T) workDir {
	t.Helper()
	dir, err := os.MkdirTemp("", "v") //nolint:usetesting // short: tests have sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w := workDir(dir)
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "-co", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil { // for tests that give up root's rights
		t.Fatalf("listing the files of the repository: %v", err)
	}
	for _, name := range strings.Split(strings.TrimRight(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) { // removed, not yet committed
			continue
		}
		to := w.source(name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// source returns the path of a file of the copy.
func (w workDir) source(name string) string { return filepath.Join(string(w), "tree", name) }

// output returns the path of a file beside the copy.
func (w workDir) output(name string) string { return filepath.Join(string(w), name) }

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// golang runs a go command in the copy, in the workspace, which has the requirements of all modules.
func (w workDir) golang(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = w.source(""), append(os.Environ(), "GOWORK=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", args[0], err, stderr.String())
	}
	return string(out)
}

// build builds the tests of a package.
func (w workDir) build(t *testing.T, pkg, name string, flags ...string) binary {
	t.Helper()
	// The files of a killed process are removed with w.
	b := binary{path: w.output(name), dir: w.source(pkg), env: []string{"TMPDIR=" + string(w)}}
	w.golang(t, slices.Concat([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", b.path}, flags, []string{"./" + pkg})...)
	return b
}

// A binary has the tests of a package.
type binary struct {
	path, dir string
	args, env []string
}

// with returns the binary with a variable in its environment.
func (b binary) with(variable string) binary {
	b.env = append(slices.Clip(b.env), variable)
	return b
}

func (b binary) run(t *testing.T, limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit+5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.path, slices.Concat(args, b.args, []string{fmt.Sprint("-test.timeout=", limit)})...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), b.env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// exactly returns a regular expression of some tests.
func exactly(tests ...string) string {
	if len(tests) == 1 { // perhaps a subtest
		return "^" + strings.Replace(tests[0], "/", "$/^", 1) + "$"
	}
	return "^(" + strings.Join(tests, "|") + ")$"
}

// fails reports whether one of the tests that match a regular expression fails. One that does not
// end in time fails, and so does a process that always ends without a result.
func (b binary) fails(t *testing.T, limit time.Duration, tests string) (out string, fails bool) {
	for range 3 {
		var err error
		out, err = b.run(t, limit, "-test.run="+tests)
		if fails, err = hasFailed(out, err); err == nil {
			return out, fails
		}
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

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// failedTests returns the tests that failed, by the output.
func failedTests(out string) (names []string) {
	for _, m := range failedTest.FindAllStringSubmatch(out, -1) {
		names = append(names, m[1])
	}
	return names
}

// noticed reports whether tests fail with a change, and neither by chance nor because of another
// test or of the machine: those that the output names, or else all together, fail again, or took
// far too long the first time, and pass without the change. If they do not pass, t fails.
func noticed(t *testing.T, changed, whole binary, limit time.Duration, tests string) (out string, is bool) {
	out, fails := changed.fails(t, limit, tests)
	if !fails {
		return out, false
	}
	timedOut := strings.Contains(out, "panic: test timed out")
	for _, again := range []string{exactly(failedTests(out)...), tests} {
		if timedOut {
			again = tests
		} else if _, fails := changed.fails(t, limit, again); !fails {
			continue
		}
		control, fails := whole.fails(t, limit, again)
		if fails {
			t.Errorf("%s: %s fail without a change\n%s", whole.dir, again, control)
		}
		return out, !fails
	}
	return out, false
}

// each calls f with each number below n, two at a time.
func each(n int, f func(int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	for i := range n {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { <-slots }()
			f(i)
		}()
	}
	wg.Wait()
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
