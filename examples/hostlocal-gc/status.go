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

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// The exit statuses.
const (
	statusDone   = 0
	statusError  = 1
	statusUsage  = 2
	statusLeaked = 3
)

// errFound gives check and fleet their exit status when something is wrong. It is not printed: the output says it.
var errFound = errors.New("something is wrong")

// A usageError is wrong on any node.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// once makes the body of a command that ends after --timeout.
func (a *app) once(body func(ctx context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), a.flags.longest())
		defer cancel()
		return body(ctx)
	}
}

// run runs the command and returns its exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	found := errors.Is(err, errFound)
	if !found {
		a.printError(err)
	}
	switch {
	case found && !a.failed:
		return statusLeaked
	case errors.As(err, new(usageError)), err != nil && cmd == root: // which finds no command
		fmt.Fprintf(a.stderr, "See %q.\n", cmd.CommandPath()+" --help")
		return statusUsage
	case a.failed:
		return statusError
	}
	return statusDone
}

// printError prints an error before the output of the pass, and makes the command end with status 1.
// The text is cleaned, since errors quote other programs.
func (a *app) printError(err error) {
	if err == nil {
		return
	}
	a.failed = true
	for i, line := range strings.Split(diagnose.InFlags(err.Error()), "\n") {
		if line = term.Clean(strings.ReplaceAll(line, "\t", "  ")); i == 0 {
			line = "hostlocal-gc: " + line
		}
		fmt.Fprintln(a.stderr, line)
	}
	a.notePermission(err)
}

// notePermission tells users without permission how to get it: host-local's files belong to root.
func (a *app) notePermission(err error) {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() > 0 {
		a.note("host-local's files are root's: run it as root (sudo)")
	}
}

// note prints a note to stderr: stdout may go to a pipe.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.stderr, term.Clean("hostlocal-gc: note: "+fmt.Sprintf(format, args...)))
}
