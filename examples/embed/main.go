// SPDX-License-Identifier: Apache-2.0

// Embed is an agent that serves the ADDs of a network itself, and has a store of the interfaces
// that it made. NETWORK and STORE name them; the store is a file with a JSON array of
// podsource.Attachment.
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func main() {
	log := logr.FromSlogHandler(slog.Default().Handler())
	if err := run(context.Background(), log, os.Getenv("NETWORK"), os.Getenv("STORE")); err != nil {
		log.Error(err, "Ended")
		os.Exit(1)
	}
}

func run(ctx context.Context, log logr.Logger, network, file string) error {
	store := hostlocal.New(os.Getenv("DATA_DIR")) // "" is /var/lib/cni/networks
	interfaces := func(context.Context) (all []podsource.Attachment, err error) {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		return all, err // a lost store is an error, not an empty list
	}
	source := podsource.Attachments([]string{network}, podsource.Always, interfaces)
	reconciler, err := gc.New(store, []string{network}, source, gc.Options{Logger: log})
	if err != nil {
		return err
	}
	report, err := reconciler.AtStartup(ctx, gc.NoADDInFlight) // an ADD meanwhile would lose its address
	if err != nil {
		log.Error(err, "Could not release leaked addresses; going on")
	}
	log.Info("Ready to serve ADDs", "released", report.Counts()[gc.Released])
	return nil // a real agent begins to serve
}
