// SPDX-License-Identifier: Apache-2.0

// Agent is a small node agent around the library, ready to be a DaemonSet. It
// collects what leaked when it starts, goes on collecting, and shows what it
// did: as metrics, as JSON, and as a page for people.
//
//	agent --source file:/run/pods.json
//
// README.md has its flags, its environment and its endpoints.
//
// Start reading at run.go. The library is used in fleet.go; board.go keeps what
// its passes report, and serve.go shows it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	status := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr, hangup)
	stop()
	os.Exit(status)
}
