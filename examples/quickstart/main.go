// SPDX-License-Identifier: Apache-2.0

// Quickstart shows on one screen what the library does. It needs no root, no
// cluster and no flags: it makes a data dir of its own, lets host-local's own
// code reserve addresses in it, loses some of them as nodes do, runs one pass,
// and cleans up behind itself.
//
// Read this file from top to bottom. The pods are in pods.go, what host-local
// does in reserve.go, the tables in show.go.
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
		screen.Width = 100 // a pipe has no width, and this is pleasant to read
	}

	// What is said is kept until the data dir is gone: a pipe that closes early
	// ends the program at its first write to it.
	var out bytes.Buffer
	err := run(ctx, &out, screen)
	stop()
	_, writeErr := out.WriteTo(os.Stdout)
	if err := errors.Join(err, writeErr); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run gives the tour in a temporary data dir, which is gone when it returns.
func run(ctx context.Context, out *bytes.Buffer, screen term.Screen) (err error) {
	dataDir, err := os.MkdirTemp("", "hostlocal-gc-quickstart-")
	if err != nil {
		return fmt.Errorf("making a data dir: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dataDir)) }()
	return tour(ctx, out, screen, dataDir)
}

// tour is the whole story, on a data dir of the caller's.
func tour(ctx context.Context, out *bytes.Buffer, screen term.Screen, dataDir string) error {
	now := time.Now()

	// 1. A node at work: the plugin reserves addresses for pods, time passes,
	// and some of the pods go away without a CNI DEL.
	attachments, err := reserve(ctx, dataDir, now)
	if err != nil {
		return err
	}

	// 2. What is on the disk by now, as the library reads it.
	store := hostlocal.New(dataDir)
	before, err := store.List(ctx)
	if err != nil {
		return err
	}
	if err := showBefore(out, screen, store, before, attachments, now); err != nil {
		return err
	}

	// 3. Which pods live here? A real agent asks kubelet or the API server and the
	// container runtime, joined by podsource.Union. Here the answer is known in
	// advance, with the gaps that real answers have.
	var source podsource.Source = podsource.Static(livePods(attachments, now))

	// 4. The pass. This is all that an agent has to call: it names the networks to
	// release in, and the zero Options are the safe ones.
	reconciler, err := gc.New(store, []string{network}, source, gc.Options{})
	if err != nil {
		return err
	}
	report, err := reconciler.Reconcile(ctx)
	if err != nil {
		return err
	}

	// 5. What became of each reservation, and why.
	after, err := store.List(ctx)
	if err != nil {
		return err
	}
	showAfter(out, screen, &report, len(after))
	return nil
}
