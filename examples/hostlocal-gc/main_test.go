// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

var (
	update = flag.Bool("update", false, "rewrite the outputs in README.md")

	// built is the command: a copy of this binary, which TestMain makes.
	built string
)

// isCommand is set in the environment of this binary where it stands for the command.
const isCommand = "IS_HOSTLOCAL_GC"

// nodeUp is a variable with the time for which the node has been up, in place of a year.
const nodeUp = "TEST_NODE_UP"

// TestMain runs the command when a test starts this binary again, on a node that has been up for a
// year, however young the machine is.
func TestMain(m *testing.M) {
	up := 365 * 24 * time.Hour
	if d, err := time.ParseDuration(os.Getenv(nodeUp)); err == nil {
		up = d
	}
	gctest.Uptime(nil, up)
	diagnose.Booted = func() time.Time { return time.Now().Add(-up) }
	defaultMemory = "" // not in the machine's /run
	if os.Getenv(isCommand) != "" {
		main()
	}
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hostlocal-gc-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built = filepath.Join(dir, "hostlocal-gc")
	if err := copySelf(built); err != nil {
		fmt.Fprintln(os.Stderr, "copying the command:", err)
		return 1
	}
	return m.Run()
}

// copySelf copies this binary to where any user may run it.
func copySelf(to string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(self)
	return errors.Join(err, os.WriteFile(to, text, 0o755))
}

// An outcome is the result of a run of the command.
type outcome struct {
	stdout, stderr string
	status         int
}

// command makes the built command, to run in dir. The test's environment sets none of its flags and
// does not colour its output.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built, args...)
	cmd.Dir = dir
	mine := func(v string) bool {
		return strings.HasPrefix(v, "HOSTLOCAL_GC_") || strings.HasPrefix(v, nodeName+"=")
	}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), mine), "NO_COLOR=", "TERM=xterm", isCommand+"=1")
	return cmd
}

// run runs the built command in dir.
func run(t *testing.T, dir string, stdin io.Reader, args ...string) outcome {
	t.Helper()
	cmd := command(t, dir, args...)
	cmd.Stdin = stdin
	return finish(t, cmd, cmd.Run)
}

// finish runs a command, or waits for it, with the outputs that it makes.
func finish(t *testing.T, cmd *exec.Cmd, run func() error) (out outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
	}
	var exit *exec.ExitError
	if err := run(); errors.As(err, &exit) {
		out.status = exit.ExitCode()
	} else if err != nil {
		t.Fatalf("starting the command: %v", err)
	}
	out.stdout, out.stderr = fmt.Sprint(cmd.Stdout), fmt.Sprint(cmd.Stderr)
	return out
}
