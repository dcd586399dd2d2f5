// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A result is the report of a pass. It is valid even if the pass had an error, which was printed.
type result struct {
	gc.Report
	judged bool // the sources gave an answer that counts
	causes diagnose.Causes
}

// within bounds ctx by --timeout.
func (a *app) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.flags.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, a.flags.timeout)
}

// look makes a dry pass with the source of the flags.
func (a *app) look(ctx context.Context) (result, error) {
	s, err := a.checkedSource()
	if err != nil {
		return result{}, err
	}
	return a.pass(ctx, s, func(opts *gc.Options) { opts.DryRun = true })
}

// pass makes one pass over the data directory, with options that a command changes.
func (a *app) pass(ctx context.Context, s podsource.Source, change func(*gc.Options)) (result, error) {
	store, names, err := a.dataDir()
	if err != nil {
		return result{}, err
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	if len(a.asked(names)) == 0 { // there is none
		return result{Report: gc.Report{DataDir: store.DataDir(), Started: time.Now()}}, nil
	}
	opts := a.onceOptions()
	change(&opts)
	reconciler, err := gc.New(store, a.asked(names), s, opts)
	if err != nil {
		return result{}, usageError{err}
	}
	report, err := reconciler.Reconcile(ctx)
	report.Err = errors.Join(err, a.checkNetworks(report.Networks, names))
	if report.Memory != "" { // which fails no pass
		_, _ = fmt.Fprintf(a.stderr, "hostlocal-gc: waits begin with this pass: %s\n", report.Memory) // it may be closed
	}
	a.printError(report.Err)
	causes, _ := diagnose.NewInquiry(a.flags.sources).Find(ctx, &report, nil)
	return result{report, !errors.Is(err, gc.ErrRefused), causes}, nil
}

// onceOptions are the options of a command's single pass, in which one source may take all of
// --timeout.
func (a *app) onceOptions() gc.Options {
	opts := a.options()
	opts.SourceTimeout = cmp.Or(a.flags.timeout, 24*time.Hour) // the maximum
	return opts
}

// entries returns the entries of a network.
func (r *result) entries(network string) []*gc.Entry {
	return slices.DeleteFunc(r.shown(), func(e *gc.Entry) bool { return e.Network != network })
}

// shown returns the entries of the requested networks.
func (r *result) shown() (of []*gc.Entry) {
	for i := range r.Reservations {
		e := &r.Reservations[i]
		if slices.Contains(r.Networks, e.Network) {
			of = append(of, e)
		}
	}
	return of
}

// at returns the entries of an address.
func (r *result) at(ip netip.Addr) []*gc.Entry {
	return slices.DeleteFunc(r.shown(), func(e *gc.Entry) bool { return e.IP != ip })
}

// elsewhere says in which networks that were not requested an address is reserved. It is empty if
// there are none.
func (r *result) elsewhere(ip netip.Addr) string {
	var names []string
	for i := range r.Reservations {
		if e := &r.Reservations[i]; e.IP == ip {
			names = append(names, e.Network)
		}
	}
	if len(names) == 0 || len(r.at(ip)) > 0 {
		return ""
	}
	return fmt.Sprintf("it is reserved in %s, which --network does not name", strings.Join(names, ", "))
}

// leaked reports whether something is leaked in the requested networks.
func (r *result) leaked() bool {
	return slices.ContainsFunc(r.Reservations, func(e gc.Entry) bool {
		return e.Verdict == gc.Leaked && e.Reason != gc.NetworkNotNamed
	})
}

// list runs the command.
func (a *app) list(ctx context.Context) error {
	done, err := a.look(ctx)
	if err != nil {
		return err
	}
	return a.print(&done, view{all: true})
}

// checkedSource checks the flags and returns their source.
func (a *app) checkedSource() (podsource.Source, error) {
	if err := a.flags.check(); err != nil {
		return nil, err
	}
	return a.source()
}

// plan runs the command plan, and release --dry-run.
func (a *app) plan(ctx context.Context) error {
	done, err := a.look(ctx)
	if err != nil {
		return err
	}
	if err := a.print(&done, view{tail: "Nothing was released: this is a plan."}); err != nil {
		return err
	}
	if a.flags.exitCode && done.leaked() {
		return errLeaked
	}
	return nil
}

// release runs the command.
func (a *app) release(ctx context.Context) error {
	if a.flags.dryRun {
		if len(a.flags.ips) > 0 {
			return usagef("--ip narrows what is released, and --dry-run releases nothing; plan shows all")
		}
		return a.plan(ctx)
	}
	if a.flags.exitCode {
		return usagef("--exit-code is for plan and release --dry-run")
	}
	if len(a.flags.networks) == 0 {
		return a.unnamed("release works only on networks that are named")
	}
	if err := a.flags.checkAllNetworks(); err != nil {
		return err
	}
	s, err := a.checkedSource()
	if err != nil {
		return err
	}
	chosen, err := a.flags.selection()
	if err != nil {
		return err
	}
	done, err := a.pass(ctx, s, func(opts *gc.Options) { opts.Only = chosen.has })
	if err != nil {
		return err
	}
	return errors.Join(a.print(&done, view{released: true}), chosen.refused(&done))
}

// A selection is what --ip narrows a release to: all if it is empty.
type selection []netip.Addr

// selection reads the flag.
func (f *flags) selection() (s selection, err error) {
	for _, text := range f.ips {
		ip, err := parseAddress(text)
		if err != nil {
			return nil, usagef("--ip: %w", err)
		}
		if !slices.Contains(s, ip) {
			s = append(s, ip)
		}
	}
	return s, nil
}

// has reports whether a leak is selected.
func (s selection) has(r *hostlocal.Reservation) bool { return len(s) == 0 || slices.Contains(s, r.IP) }

// refused returns an error for each address of --ip that was not released.
func (s selection) refused(r *result) error {
	var errs []error
	for _, ip := range s {
		why := cmp.Or(r.elsewhere(ip), "it is not reserved")
		for _, e := range r.at(ip) {
			if e.Verdict == gc.Released {
				why = ""
				break
			}
			why = fmt.Sprintf("it is %s in network %s: %s", e.Verdict, e.Network, e.Reason.Text())
		}
		if why != "" {
			errs = append(errs, fmt.Errorf("%v was not released: %s", ip, why))
		}
	}
	return errors.Join(errs...)
}
