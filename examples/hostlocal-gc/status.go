// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// The exit statuses.
const (
	statusDone   = 0
	statusError  = 1
	statusUsage  = 2
	statusLeaked = 3
	// statusInterrupted is that of a program that a shell's Ctrl-C has ended.
	statusInterrupted = 130
)

// errLeaked ends plan --exit-code when something is leaked. It is no error, and
// nothing is printed of it.
var errLeaked = errors.New("something is leaked")

// A failure is an error of the work itself. Whatever else comes back from cobra
// is wrong usage: an unknown command, an unknown flag, a value that can't be
// parsed, or a usageError.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// A usageError is wrong whatever the node looks like.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// work makes a command's body: its errors are failures unless they say that
// they are about the usage.
func work(body func(ctx context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		err := body(cmd.Context())
		var usage usageError
		if err == nil || errors.As(err, &usage) {
			return err
		}
		return failure{err}
	}
}

// run runs the command and returns its exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	found := errors.Is(err, errLeaked) || errors.Is(err, errWrong)
	if !found {
		a.complain(err)
	}
	var failed failure
	switch {
	case found && !a.failed:
		return statusLeaked
	case err != nil && !found && !errors.As(err, &failed):
		fmt.Fprintf(a.stderr, "See %q.\n", cmd.CommandPath()+" --help")
		return statusUsage
	case a.failed:
		return statusError
	}
	return statusDone
}

// complain prints an error at once, which comes before what is printed of a pass, and has
// the command end with it. What errors quote is of other programs.
func (a *app) complain(err error) {
	if err == nil {
		return
	}
	a.failed = true
	for i, line := range strings.Split(flagWords.Replace(err.Error()), "\n") {
		if line = term.Clean(strings.ReplaceAll(line, "\t", "  ")); i == 0 {
			line = "hostlocal-gc: " + line
		}
		fmt.Fprintln(a.stderr, line)
	}
	a.notePermission(err)
}

// flagWords are the words of the command for those of the library.
var flagWords = strings.NewReplacer(
	"making a reconciler: ", "", "MinAge is ", "--min-age is ", "StartingFor is ", "--starting-for is ", "StartupTimeout is ", "--startup-timeout is ",
	"RuntimeRequestTimeout is ", "--runtime-request-timeout is ", "SourceTimeout is ", "--timeout is ", "Interval is ", "--interval is ",
	"wrap it in podsource.AllowEmpty", "--allow-empty says so", "say so with Nested", "say so with --source netns:nested",
)

// notePermission says how those get permission who lack it: host-local's files are root's.
func (a *app) notePermission(err error) {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() > 0 {
		a.note("host-local's files are root's: run it as root (sudo)")
	}
}
