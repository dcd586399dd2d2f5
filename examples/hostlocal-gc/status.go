// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
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
	var failed failure
	switch {
	case err == nil:
		return statusDone
	case errors.Is(err, errLeaked), errors.Is(err, errWrong):
		return statusLeaked
	case errors.As(err, &failed):
		fmt.Fprintf(a.stderr, "%s: %v\n", root.Name(), err)
		return statusError
	}
	fmt.Fprintf(a.stderr, "%s: %v\n", root.Name(), err)
	fmt.Fprintf(a.stderr, "See %q.\n", cmd.CommandPath()+" --help")
	return statusUsage
}
