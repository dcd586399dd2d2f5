// SPDX-License-Identifier: Apache-2.0

// Hostlocal-gc finds and releases the addresses that host-local still reserves on this node for
// containers that no longer exist, in one pass or as an agent.
//
// Its flags, its JSON and its exit statuses are a contract. README.md has worked examples.
//
// Start reading at root.go. A pass is in pass.go, and its output in print.go and table.go.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"

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
