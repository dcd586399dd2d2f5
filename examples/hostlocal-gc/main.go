// SPDX-License-Identifier: Apache-2.0

// Hostlocal-gc finds and releases the addresses that host-local holds on this node for
// containers which are no more: by hand, or as an agent.
//
//	hostlocal-gc check     what is wrong, in one line
//	hostlocal-gc list      every reservation with its verdict
//	hostlocal-gc plan      what release would do, and why
//	hostlocal-gc release   one pass, which releases in the networks that are named
//	hostlocal-gc agent     such passes at its start and from then on
//	hostlocal-gc show      all that is known of one address
//	hostlocal-gc map       the address range as a picture
//	hostlocal-gc networks  the networks under the data dir
//
// Its flags, its JSON and its exit statuses are a contract: 0 done, 1 error, 2
// wrong usage, 3 for plan --exit-code when something is leaked. README.md has
// worked examples.
//
// Start reading at root.go; a pass is in pass.go, what is printed of it in
// table.go.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

func main() {
	interrupted, stopInterrupt := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, stop := signal.NotifyContext(interrupted, syscall.SIGTERM)
	// What hangs, in a pipe or on a disk, is ended by the second signal.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv, environ: os.Environ(),
		screen: term.Of(os.Stdout),
	}
	status := a.run(ctx, os.Args[1:])
	if (status == statusError || status == statusLeaked) && interrupted.Err() != nil {
		status = statusInterrupted
	}
	stop()
	stopInterrupt()
	os.Exit(status)
}

// An app is the command with what it reads and writes.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	screen         term.Screen                 // behind stdout
	lookup         func(string) (string, bool) // in the environment
	environ        []string                    // all of it
	flags          flags
	failed         bool // an error was printed, and the exit status must say so
}
