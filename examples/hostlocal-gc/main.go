// SPDX-License-Identifier: Apache-2.0

// Hostlocal-gc finds and releases the addresses that host-local still reserves on this node for
// containers that no longer exist, in one pass or as an agent.
//
// Its flags, its JSON and its exit statuses are a contract. README.md has worked examples.
//
// Start reading at root.go. A pass is in pass.go, and its output in print.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends a command that hangs on a pipe or a disk.
	context.AfterFunc(ctx, stop)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, screen: term.Of(os.Stdout)}
	os.Exit(a.run(ctx, commandLine(os.Args)))
}

// An app is the command with its input and output.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	screen         term.Screen // behind stdout
	log            logr.Logger // silent but for the agent's: the output of other commands says what was done
	flags          flags
	failed         bool // an error was printed, and the exit status must say so
}

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
