// SPDX-License-Identifier: Apache-2.0

// Hostlocal-gc shows, plans and releases by hand the addresses that host-local
// holds on this node for containers which are no more.
//
//	hostlocal-gc list      every reservation with its verdict
//	hostlocal-gc plan      what release would do, and why
//	hostlocal-gc release   one pass, which releases in the networks that are named
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
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		screen: term.Of(os.Stdout),
	}
	status := a.run(ctx, os.Args[1:])
	if status == statusError && interrupted.Err() != nil {
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
	screen         term.Screen // behind stdout
	flags          flags
}
