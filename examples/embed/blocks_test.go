// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// Go blocks of README.md that are in no program, as the compiler sees them: TestDocuments compares them.
var _ = []any{ownSource, withoutKubernetes, cniServer}

func ownSource(listSandboxes func(context.Context) ([]struct{ PodUID, ID string }, error)) podsource.Source {
	source := podsource.Sandboxes(func(ctx context.Context) (all []podsource.Pod, err error) {
		sandboxes, err := listSandboxes(ctx) // all of them, in any state, or an error
		for _, s := range sandboxes {
			all = append(all, podsource.Pod{UID: types.UID(s.PodUID), ContainerIDs: []string{s.ID}})
		}
		return all, err
	})
	return source
}

func withoutKubernetes() (*gc.Reconciler, error) {
	kernel, err := netns.New(netns.Options{})
	if err != nil {
		return nil, err
	}
	cache, err := cnicache.New(cnicache.Options{Living: kernel.Living})
	if err != nil {
		return nil, err
	}
	reconciler, err := gc.New(hostlocal.New(""), []string{"podnet"}, podsource.Union(kernel, cache), gc.Options{MinAge: 10 * time.Second})
	return reconciler, err
}

func cniServer(ctx context.Context, log logr.Logger, path string, networks []string, store *hostlocal.Store, runtime podsource.Source,
	attachmentsOf func(podsource.Pod) ([]checkpoint.Entry, error), listen func()) error {
	record, err := checkpoint.Open(path, checkpoint.Options{Networks: networks}) // alone in its directory; ErrCorrupt and ErrVersion end the start
	if err != nil {
		return err
	}
	// Adds containers that exist and are not recorded. Until the first call succeeds every Add fails: try again, and serve no ADD
	// before. Call it again 14 minutes later (2 * Options.Lag), and then until it returns fs.ErrExist: the record is complete.
	err = record.Backfill(ctx, runtime, attachmentsOf)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		log.Error(err, "Asking the runtime; without a record Add fails")
	}
	gone, err := record.Prune(ctx) // removes containers without a namespace, for which no DEL came
	log.Info("Pruned", "attachments", len(gone), "err", err)
	reconciler, err := gc.New(store, networks, podsource.Union(record, runtime), gc.Options{})
	if err != nil {
		return err
	}
	report, err := reconciler.AtStartup(ctx, gc.NoADDInFlight)
	log.Info("Released", "addresses", report.Counts()[gc.Released], "err", err)
	listen() // from here on record.Add is the last step of an ADD, record.Remove of a DEL
	return nil
}
