// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// lookEvery is how often the data dir is looked at for networks that have come
// up. It costs the reading of one small folder.
const lookEvery = 10 * time.Second

// A fleet runs one Reconciler for each network.
//
// Each is told of all other networks of the data dir, also of those that nobody
// asked to look after (R3). A network's folder comes with its first ADD, so the
// set may grow; then all Reconcilers are made anew.
type fleet struct {
	settings *settings
	source   podsource.Source
	log      logr.Logger
	board    *board
	tell     []func(gc.Report, error) // of each pass

	mu      sync.Mutex
	running []*gc.Reconciler // guarded by mu
}

// run keeps the Reconcilers running until ctx ends.
func (f *fleet) run(ctx context.Context) {
	named, _ := f.settings.wanted()
	source := oneByOne(f.source)
	var settle time.Duration
	for names := named; ctx.Err() == nil; settle = f.settings.minAge {
		found, err := f.find(names)
		f.board.looked(err)
		if err != nil {
			f.log.Error(err, "Looking for networks; going on with those that are known")
			found = names
		}
		names = found
		f.generation(ctx, names, source, settle)
	}
}

// find returns the networks known so far with those that have come up since,
// sorted. It forgets none: one whose folder is gone has no reservations, and may
// come back.
func (f *fleet) find(known []string) ([]string, error) {
	found, err := hostlocal.Networks(f.settings.dataDir)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		// An error is about the pattern, and there is none in a fixed one.
		if files, _ := filepath.Glob(filepath.Join(f.settings.dataDir, "last_reserved_ip*")); len(files) > 0 {
			return nil, fmt.Errorf("data dir %s is itself a network's folder; the data dir is the folder above it", f.settings.dataDir)
		}
	}
	all := append(slices.Clone(known), found...)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// generation runs Reconcilers for these networks until ctx ends or another
// network comes up.
//
// They begin after settle. A Reconciler does not know which steps the node's
// clock made before it was made (R5), so what is older than it must not look
// older than it is: once the minimum age has passed, that is right whatever the
// clock did. Only at the process's start is there nobody who might have seen a
// step.
func (f *fleet) generation(ctx context.Context, names []string, source podsource.Source, settle time.Duration) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	stores, err := f.stores(names)
	if err != nil {
		f.log.Error(err, "Looking at networks") // the names were checked before
	}
	again := make(chan struct{}, 1)
	opts := f.settings.options()
	opts.OnReport = f.onReport
	opts.Logger = f.log
	var all []*gc.Reconciler
	var hooks []string
	for _, store := range stores {
		if !f.looksAfter(store.Network()) {
			continue
		}
		opts.Siblings = slices.DeleteFunc(slices.Clone(stores), func(s *hostlocal.Store) bool { return s == store })
		all = append(all, gc.New(store, f.current(names, source, again), opts))
		hooks = append(hooks, store.Network())
	}
	f.board.expect(hooks)
	f.set(all)
	defer f.set(nil)

	var working sync.WaitGroup
	defer working.Wait()
	defer end()
	for i, r := range all {
		working.Go(func() {
			if sleep(ctx, settle) {
				f.runOne(ctx, r, hooks[i])
			}
		})
	}
	f.awaitAnother(ctx, names, again)
}

// runOne runs a Reconciler until ctx ends.
func (f *fleet) runOne(ctx context.Context, r *gc.Reconciler, network string) {
	// The hook is over with the first pass that was not refused, which the
	// board sees, or by this time.
	hook := time.AfterFunc(f.settings.startupTimeout, func() { f.board.hookEnded(network) })
	defer hook.Stop()
	if err := r.Start(ctx); err != nil {
		f.log.Error(err, "Looking after a network; it ended", "network", network)
	}
}

// awaitAnother waits until a network has come up that is not among names, or ctx
// ends.
func (f *fleet) awaitAnother(ctx context.Context, names []string, again <-chan struct{}) {
	look := time.NewTicker(min(lookEvery, f.settings.interval))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-again:
		}
		found, err := f.find(names)
		f.board.looked(err)
		if err != nil || len(found) == len(names) {
			continue
		}
		for _, name := range found {
			if !slices.Contains(names, name) {
				f.log.Info("A network has come up; passes go on when the minimum age is over",
					"network", name, "in", f.settings.minAge.String())
			}
		}
		return
	}
}

// current refuses to answer when the data dir holds a network that the
// Reconcilers were not told of: a container might have an address in use there
// (R3). It is asked after the reservations were listed (R1), so what came up
// later holds nothing that was.
func (f *fleet) current(names []string, s podsource.Source, again chan<- struct{}) podsource.Source {
	return podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		found, err := f.find(names)
		if err != nil {
			return nil, err
		}
		if len(found) > len(names) {
			select {
			case again <- struct{}{}:
			default:
			}
			return nil, fmt.Errorf("%w: a network has come up in %s that this pass does not know", podsource.ErrIncomplete, f.settings.dataDir)
		}
		return s.Pods(ctx)
	})
}

func (f *fleet) onReport(report gc.Report, err error) {
	for _, tell := range f.tell {
		tell(report, err)
	}
}

func (f *fleet) looksAfter(network string) bool {
	named, all := f.settings.wanted()
	return all || slices.Contains(named, network)
}

func (f *fleet) stores(names []string) ([]*hostlocal.Store, error) {
	var stores []*hostlocal.Store
	var errs []error
	for _, name := range names {
		s, err := hostlocal.New(f.settings.dataDir, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		stores = append(stores, s)
	}
	return stores, errors.Join(errs...)
}

// trigger asks for a pass over each network now.
func (f *fleet) trigger() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.running {
		r.Trigger()
	}
}

func (f *fleet) set(all []*gc.Reconciler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = all
}

// oneByOne has the passes of several networks ask s one after the other, as a
// source may rely on.
func oneByOne(s podsource.Source) podsource.Source {
	turn := make(chan struct{}, 1)
	return podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another network's pass to have its answer: %w", ctx.Err())
		}
		defer func() { <-turn }()
		return s.Pods(ctx)
	})
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
