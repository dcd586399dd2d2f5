// SPDX-License-Identifier: Apache-2.0

// Node is an agent for a usual node of Kubernetes. Its arguments are the networks in which it
// releases leaked addresses: node podnet
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := logr.FromSlogHandler(slog.Default().Handler())
	if err := run(ctx, log, os.Args[1:]); err != nil {
		log.Error(err, "Ended")
		os.Exit(1)
	}
}

func run(ctx context.Context, log logr.Logger, networks []string) error {
	source, err := node.New(node.Options{Logger: log})
	if err != nil {
		return err
	}
	store := hostlocal.New("") // "" is /var/lib/cni/networks
	reconciler, err := gc.New(store, networks, source, gc.Options{Logger: log})
	if err != nil {
		return err
	}
	return reconciler.Start(ctx) // a pass now, and then every ten minutes, or when a report asks for it
}
