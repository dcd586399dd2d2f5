// SPDX-License-Identifier: Apache-2.0

// Agent is a small node agent around the library, ready to be a DaemonSet. It
// releases what leaked when it starts, goes on doing so, and shows what it did:
// as metrics, as JSON, and as a page for people.
//
//	agent --network podnet --source file:/run/pods.json
//
// README.md has its flags, its environment and its endpoints.
//
// Start reading at run.go, where the library is used. status.go keeps what its
// passes report, and serve.go shows it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Before anything else: until here a signal ends the process with the status
	// of a failure, and a kubelet may send one at any time.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	status := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr, hangup)
	stop()
	os.Exit(status)
}
