// SPDX-License-Identifier: Apache-2.0

// Quickstart shows on one screen what the library does. It needs no root, no cluster and no flags.
// In a temporary data directory host-local's own code reserves addresses, some of them leak as on a
// real node, and one pass releases them.
//
// Read this file from top to bottom. The pods are in pods.go, host-local's part is in reserve.go,
// and the tables are in show.go.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	screen := term.Of(os.Stdout)
	if screen.Width == 0 {
		screen.Width = 100 // a pipe has no width; use a readable one
	}

	// Print only after the data directory is removed: a closed pipe ends the program at its first
	// write.
	var out bytes.Buffer
	err := run(ctx, &out, screen)
	stop()
	_, writeErr := out.WriteTo(os.Stdout)
	if err := errors.Join(err, writeErr); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run gives the tour in a temporary data directory.
func run(ctx context.Context, out *bytes.Buffer, screen term.Screen) (err error) {
	dataDir, err := os.MkdirTemp("", "hostlocal-gc-quickstart-")
	if err != nil {
		return fmt.Errorf("making a data dir: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dataDir)) }()
	return tour(ctx, out, screen, dataDir)
}

// upToResult gives the steps up to the pass. It returns the report of the pass, and how many
// reservations are left.
func upToResult(ctx context.Context, out *bytes.Buffer, screen term.Screen, dataDir string) (report gc.Report, left int, err error) {
	now := time.Now()

	// 1. A node at work: the plugin reserves addresses for pods, time passes, and some pods end
	// without a CNI DEL.
	attachments, err := reserve(ctx, dataDir, now)
	if err != nil {
		return report, 0, err
	}

	// 2. The reservations, as the library reads them.
	store := hostlocal.New(dataDir)
	before, err := store.List(ctx)
	if err != nil {
		return report, 0, err
	}
	if err := showBefore(out, screen, store, before.Reservations, attachments, now); err != nil {
		return report, 0, err
	}

	// 3. What is live. This agent makes every attachment of the network itself, and has kept a store
	// of them since before the first. Other agents ask kubelet or the API server, and the container
	// runtime, joined by podsource.Union.
	source := podsource.Attachments([]string{network}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) {
		return live(attachments), nil
	})

	// 4. The pass at the start of the agent, before it serves an ADD: so none is in flight. An agent
	// needs no other call. It names the networks to release in; the zero Options are safe.
	reconciler, err := gc.New(store, []string{network}, source, gc.Options{})
	if err != nil {
		return report, 0, err
	}
	report, err = reconciler.AtStartup(ctx, gc.NoADDInFlight)
	if err != nil {
		return report, 0, err
	}
	after, err := store.List(ctx)
	if err != nil {
		return report, 0, err
	}
	return report, len(after.Reservations), nil
}

// tour gives all steps in the given data directory: those above, and the result.
func tour(ctx context.Context, out *bytes.Buffer, screen term.Screen, dataDir string) error {
	report, left, err := upToResult(ctx, out, screen, dataDir)
	if err != nil {
		return err
	}

	// 5. The result for each reservation, and why.
	showAfter(out, screen, &report, left)
	return nil
}
