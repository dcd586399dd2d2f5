// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The errors of passes. They come wrapped.
var (
	// ErrRefused is returned by a pass that got no answer that counts: a source
	// failed, reported no pod at all or is too old. Nothing was released, and
	// asking again later may help.
	ErrRefused = errors.New("no answer of the pod sources counts, so nothing was released")
	// ErrNoPods, beside ErrRefused, is that a source reports no pod at all, not
	// even one in the node's network, and nobody declared that this is normal
	// (R9).
	ErrNoPods = errors.New("a pod source reports no pod at all")
	// ErrSourceTimeout, beside ErrRefused, is that the source did not answer
	// within Options.SourceTimeout.
	ErrSourceTimeout = errors.New("the pod source does not answer")
	// ErrBusy is returned when the context ended before another pass of the same
	// Reconciler did.
	ErrBusy = errors.New("another pass is under way")
)

// A Reconciler releases what leaked in the networks that it was given. Its
// methods may be called from several goroutines; passes run one at a time. Make
// one for the life of the process, not one a pass: it watches the node's clock,
// and what no source names, from pass to pass (R4, R5).
type Reconciler struct {
	store      *hostlocal.Store
	networks   []string
	source     podsource.Source
	opts       Options
	now        func() reading
	sleep      func(context.Context, time.Duration) bool // between two looks
	sem        chan struct{}                             // holds a token during a pass, which guards clock and missing
	trigger    chan struct{}                             // holds a token when Trigger was called
	sourceBusy chan struct{}                             // holds a token while the source works
	clock      clock
	missing    []string // the directories that were missing in the last pass
}

// New returns a Reconciler that releases in the named networks of the store's
// data directory; all others are only read (R14). It touches no disk, and its
// error names everything that is wrong with its arguments.
func New(store *hostlocal.Store, networks []string, source podsource.Source, opts Options) (*Reconciler, error) {
	opts, err := opts.withDefaults()
	errs := []error{err}
	if store == nil {
		errs = append(errs, errors.New("there is no store"))
	}
	if source == nil {
		errs = append(errs, errors.New("there is no pod source"))
	}
	if len(networks) == 0 {
		errs = append(errs, errors.New("no network is named to release in"))
	}
	networks = slices.Clone(networks)
	slices.Sort(networks)
	for i, n := range networks {
		if !hostlocal.ValidNetwork(n) {
			errs = append(errs, fmt.Errorf("%q is not the name of a CNI network", n))
		}
		if i > 0 && networks[i-1] == n {
			errs = append(errs, fmt.Errorf("network %s is named twice", n))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("making a reconciler: %w", err)
	}
	base := time.Now()
	r := &Reconciler{
		store: store, networks: networks, source: source, opts: opts,
		sleep: sleep, sem: make(chan struct{}, 1), trigger: make(chan struct{}, 1), sourceBusy: make(chan struct{}, 1),
		now: func() reading {
			now := time.Now()
			return reading{wall: now.Round(0), mono: now.Sub(base), boot: sinceBoot()}
		},
	}
	r.clock.observe(r.now()) // it is watched from here on, not only from the first pass on
	return r, nil
}

// Reconcile does one pass: it lists the reservations, asks the source, judges,
// and releases what leaked. A pass that waits for another one to end, for the
// source or for the plugin's lock gives up when ctx ends.
//
// With an error the report still says what was done (R11): a release that failed
// does not stop the others, and the first of their errors come joined. See
// [ErrRefused], [ErrBusy] and [hostlocal.ErrLocked].
func (r *Reconciler) Reconcile(ctx context.Context) (Report, error) {
	return r.reconcile(ctx, occasion{})
}

// An occasion is what a pass needs to know of its caller.
type occasion struct {
	hook   bool // it may do without the source where nothing is reserved
	noADD  bool // the hook's assertion (R5)
	inLoop bool // an answer must not be older than two intervals
}

func (r *Reconciler) reconcile(ctx context.Context, o occasion) (report Report, err error) {
	select {
	case r.sem <- struct{}{}:
	case <-ctx.Done():
		return Report{}, fmt.Errorf("waiting for %w: %w", ErrBusy, ctx.Err())
	}
	defer func() { <-r.sem }()
	err = recoverPanic(func() error {
		return r.pass(ctx, o, &report)
	})
	report.Err = err
	if r.opts.OnReport != nil {
		err = errors.Join(err, recoverPanic(func() error {
			r.opts.OnReport(report, err)
			return nil
		}))
	}
	return report, err
}

// recoverPanic makes an error of a panic (R13): the caller's context, logger and
// OnReport run inside a pass, too.
func recoverPanic(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("pass panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return do()
}

// read takes a reading of the clocks.
func (r *Reconciler) read() reading {
	now := r.now()
	r.clock.observe(now)
	return now
}

// pass lists, asks, decides, releases and reports, in this order.
func (r *Reconciler) pass(ctx context.Context, o occasion, report *Report) error {
	begun := time.Now()
	defer func() { report.Duration = time.Since(begun) }()
	*report = Report{DataDir: r.store.DataDir(), Started: r.read().wall}
	all, err := r.store.List(ctx) // R1: what appears from here on is not a candidate
	if err != nil {
		return fmt.Errorf("listing reservations: %w", err)
	}
	if err := r.reportNetworks(report); err != nil {
		return err
	}
	s := &snapshot{
		reservations: indexReservations(all), clock: &r.clock, at: r.read(), limits: r.opts.limits(),
		networks: r.networks, foreign: r.opts.Foreign, noADD: o.noADD,
	}
	unreadable := unreadable(all)
	named := func(res hostlocal.Reservation) bool { return slices.Contains(r.networks, res.Network) }
	if o.hook && !slices.ContainsFunc(all, named) {
		return unreadable
	}
	if why, err := r.ask(ctx, o, s, report); err != nil {
		report.refuse(s, why)
		return errors.Join(unreadable, fmt.Errorf("%w: %w", ErrRefused, err))
	}
	entries, next := decide(s)
	r.clock.remember(s, entries)
	report.Reservations = entries
	report.Duplicates, report.Unreserved = s.pods.duplicates(), s.pods.unreserved(s.reservations)
	if next > 0 {
		report.NextCheck = s.at.wall.Add(next)
	}
	err = r.release(ctx, report)
	r.log(report)
	return errors.Join(unreadable, err)
}

// ask fills in what the sources say: in one look, or in two at least a second
// apart where something might be released that R5 wants to be unowned in both.
// With an error it says why no answer counts.
func (r *Reconciler) ask(ctx context.Context, o occasion, s *snapshot, report *Report) (why Reason, err error) {
	begun := time.Now()
	defer func() { report.SourceDuration = time.Since(begun) }()
	for {
		answers, err := r.listPods(ctx)
		report.addLook(answers)
		if err != nil {
			return SourceFailed, err
		}
		now := r.read()
		s.looks = append(s.looks, answers)
		s.evidence = newEvidence(s.looks, s.reservations, s.clock, s.at, now, s.limits.lag)
		s.stale = s.evidence.staleness(s.at)
		r.clock.rememberDates(s.evidence[len(s.evidence)-1], s.at)
		if err := r.checkView(answers, s.at); err != nil {
			return NoPods, err
		}
		if err := r.checkAge(answers, s.at); err != nil && o.inLoop {
			return SourceFailed, err
		}
		s.pods = indexPods(slices.Concat(s.looks...), s.clock, s.at, now)
		if len(s.looks) == 2 || !s.wantsSecondLook() {
			return 0, nil
		}
		s.looks[0] = clone(answers)
		if !r.sleep(ctx, betweenLooks) {
			return SourceFailed, fmt.Errorf("waiting to ask the pod source once more: %w", ctx.Err())
		}
	}
}

// release removes what was judged leaked, and turns those entries into what
// became of it.
func (r *Reconciler) release(ctx context.Context, report *Report) error {
	if r.opts.DryRun {
		return nil
	}
	leaked := func(why Reason) bool { return why == Unowned || why == EmptyOwner }
	n := count(report.Reservations, leaked)
	if n == 0 {
		return nil
	}
	leaks, entries := make([]*hostlocal.Reservation, 0, n), make([]*Entry, 0, n)
	for i := range report.Reservations {
		if e := &report.Reservations[i]; leaked(e.Reason) {
			leaks, entries = append(leaks, e.Reservation), append(entries, e)
		}
	}
	done, err := r.store.Release(ctx, leaks...)
	report.LockHeld, report.LongestHold = done.LockHeld, done.LongestHold
	for n, outcome := range done.Outcomes {
		e := entries[n]
		if e.Reason = outcomes[outcome]; outcome == hostlocal.Released && e.Owner == hostlocal.Empty {
			e.Reason = ReleasedEmpty
		}
		e.Verdict = e.Reason.Verdict()
		if err := done.Errs[n]; err != nil {
			e.Err = err
		}
	}
	return err
}

// count returns how many entries have a reason for which is says so.
func count(entries []Entry, is func(Reason) bool) (n int) {
	for i := range entries {
		if is(entries[i].Reason) {
			n++
		}
	}
	return n
}

// outcomes says what became of a leak.
var outcomes = [...]Reason{
	hostlocal.NotTried: NotTried, hostlocal.Released: ReleasedLeak, hostlocal.Changed: FileChanged,
	hostlocal.Gone: FileGone, hostlocal.Failed: ReleaseFailed,
}

// unreadable joins the first errors about single files: the report has all.
func unreadable(all []hostlocal.Reservation) error {
	const most = 8
	var errs []error
	n := 0
	for i := range all {
		if all[i].Err == nil {
			continue
		}
		if n++; n <= most {
			errs = append(errs, all[i].Err)
		}
	}
	if n > most {
		errs = append(errs, fmt.Errorf("and %d more reservations that can't be read; see the report", n-most))
	}
	return errors.Join(errs...)
}
