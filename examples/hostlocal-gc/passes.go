// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Results are the reports of all passes, and their errors. Like a report, they
// are true also where an error comes with them.
type results struct {
	reports []gc.Report
	judged  bool // a source was asked
	err     error
}

// within bounds ctx by --timeout.
func (a *app) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.flags.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, a.flags.timeout)
}

// passes makes one pass over each network that is asked for. An error in one
// network does not keep the others from being looked at.
//
// Each pass asks the source anew: what it says must be newer than the list of
// reservations that it is laid beside (R1).
func (a *app) passes(ctx context.Context, s podsource.Source, dryRun bool) (results, error) {
	f, err := a.folders()
	if err != nil {
		return results{}, err
	}
	return a.passesOver(ctx, f, s, dryRun), nil
}

func (a *app) passesOver(ctx context.Context, f folders, s podsource.Source, dryRun bool) results {
	ctx, cancel := a.within(ctx)
	defer cancel()
	opts := a.options()
	opts.DryRun = dryRun
	out := results{judged: s != nil}
	var errs []error
	show := a.progress(len(f.wanted))
	for i, store := range f.wanted {
		show(i, store.Network())
		var report gc.Report
		var err error
		if s == nil {
			report, err = unjudged(ctx, store)
		} else {
			opts.Siblings = f.siblings(store)
			report, err = gc.New(store, s, opts).Reconcile(ctx)
		}
		out.reports = append(out.reports, report)
		if err != nil {
			errs = append(errs, fmt.Errorf("network %s: %w", store.Network(), err))
		}
		if ctx.Err() != nil {
			if left := len(f.wanted) - i - 1; left > 0 {
				errs = append(errs, fmt.Errorf("%s more, which time did not allow to look at", count(left, "network")))
			}
			break
		}
	}
	show(len(f.wanted), "")
	out.err = errors.Join(errs...)
	return out
}

// unjudged reports what the disk alone says. That nobody was asked is told as a
// source that gave no answer would be.
func unjudged(ctx context.Context, store *hostlocal.Store) (gc.Report, error) {
	report := gc.Report{Network: store.Network(), DataDir: store.DataDir(), Started: time.Now()}
	defer func() { report.Duration = time.Since(report.Started) }()
	rs, err := store.Scan(ctx)
	if err != nil {
		return report, err
	}
	failures, err := store.ReadOwners(ctx, rs, nil, nil)
	if err != nil {
		return report, err
	}
	var errs []error
	for i := range rs {
		if rs[i].Owner == hostlocal.Vanished {
			continue
		}
		e := gc.Entry{Reservation: &rs[i], Verdict: gc.Failed, Reason: gc.NoAnswer}
		if e.Err = failures[i]; e.Err != nil {
			e.Reason = gc.OwnerUnreadable
			errs = append(errs, e.Err)
		}
		report.Reservations = append(report.Reservations, e)
	}
	return report, errors.Join(errs...)
}

// list is the command of that name.
func (a *app) list(ctx context.Context) error {
	if err := a.flags.check(); err != nil {
		return err
	}
	s, err := a.source()
	if err != nil {
		return err
	}
	done, err := a.passes(ctx, s, true)
	if err != nil {
		return err
	}
	if s == nil {
		a.noteUnjudged()
	}
	return errors.Join(a.print(done, view{inUse: true}), done.err)
}

func (a *app) noteUnjudged() {
	a.note("without a --source nothing was judged: these are the reservations, whoever holds them")
}

// requiredSource checks the flags and returns the source that they name. It is
// for commands that are nothing without a verdict.
func (a *app) requiredSource() (podsource.Source, error) {
	if err := a.flags.check(); err != nil {
		return nil, err
	}
	s, err := a.source()
	if err == nil && s == nil {
		err = usagef("a --source is missing: which pods live here?")
	}
	return s, err
}

// plan is the command of that name, and release --dry-run.
func (a *app) plan(ctx context.Context) error {
	s, err := a.requiredSource()
	if err != nil {
		return err
	}
	done, err := a.passes(ctx, s, true)
	if err != nil {
		return err
	}
	if err := errors.Join(a.print(done, view{tail: "Nothing was released: this is a plan."}), done.err); err != nil {
		return err
	}
	if a.flags.exitCode && slices.ContainsFunc(done.reports, func(r gc.Report) bool { return r.Counts()[gc.Leaked] > 0 }) {
		return errLeaked
	}
	return nil
}

// release is the command of that name.
func (a *app) release(ctx context.Context) error {
	if a.flags.dryRun {
		return a.plan(ctx)
	}
	if a.flags.exitCode {
		return usagef("--exit-code tells what is leaked of a plan; use it with plan, or with --dry-run")
	}
	if len(a.flags.networks) == 0 {
		return usagef("a --network is missing: release works only on networks that are named")
	}
	s, err := a.requiredSource()
	if err != nil {
		return err
	}
	done, err := a.passes(ctx, s, false)
	if err != nil {
		return err
	}
	return errors.Join(a.print(done, view{released: true}), done.err)
}
