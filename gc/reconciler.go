// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// The errors of passes. They come wrapped.
var (
	// ErrRefused is returned by a pass without a valid answer: a source failed, or
	// reported no pod at all, or, in a pass of Start, its answer is older than two
	// Options.Interval. Nothing was released. A later pass may succeed.
	ErrRefused = errors.New("no answer of the pod sources counts, so nothing was released")
	// ErrNoPods is returned together with ErrRefused when a source reports no pod
	// at all, not even one in the node's network, and neither the source nor the
	// caller declares that this is normal (R9).
	ErrNoPods = errors.New("a pod source reports no pod at all")
	// ErrSourceTimeout is returned together with ErrRefused when the source did not
	// answer within Options.SourceTimeout.
	ErrSourceTimeout = errors.New("the pod source does not answer")
)

// A Reconciler releases leaked reservations in the networks that it was given. Its
// methods may be called from several goroutines; passes run one at a time. Make one
// for the life of the process, not one for each pass: it remembers from pass to pass
// the node's clock, and when it first saw each reservation (R5).
type Reconciler struct {
	store    *hostlocal.Store
	disk     dataDir // the store
	networks []string
	source   podsource.Source
	fixed    bool // the source's answer never changes
	opts     Options
	now      func() reading
	sleep    func(context.Context, time.Duration) bool // between two looks
	sem      chan struct{}                             // holds a token during a pass, which guards clock
	trigger  chan struct{}                             // holds a token when Trigger was called
	onDisk   atomic.Pointer[time.Time]                 // since when an access to the data directory is under way
	onMemory atomic.Pointer[time.Time]                 // the same of Options.Memory
	started  atomic.Pointer[Report]                    // by AtStartup, and not yet continued by Start
	clock    clock
}

// AllNetworks, as the only network, stands for every network that has a directory when a
// pass begins, also for one that is a copy of another. Any runtime may have containers in
// one of them, such as Podman, whose IDs look like those of sandboxes. So all owners are
// foreign (R14): a reservation is released only in a pass with a source that sees
// addresses, or if Options.AllowForeign has its owner's prefix.
const AllNetworks = "*"

// New returns a Reconciler that releases in the given networks of the store's data
// directory; all others are only read (R14). New does not access the disk. Its error
// names everything that is wrong with the arguments.
func New(store *hostlocal.Store, networks []string, source podsource.Source, opts Options) (*Reconciler, error) {
	opts, err := opts.WithDefaults()
	errs := []error{err}
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(store == nil, "there is no store")
	refuse(source == nil, "there is no pod source")
	refuse(len(networks) == 0, "no network is named to release in")
	for i, n := range networks {
		refuse(n == AllNetworks && len(networks) > 1, "%q must be the only network", n)
		refuse(n != AllNetworks && !hostlocal.ValidName(n), "%q is not the name of a CNI network", n)
		refuse(slices.Contains(networks[:i], n), "network %s is named twice", n)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("making a reconciler: %w", err)
	}
	base, mono := time.Now(), boottime.Monotonic()
	for i := 0; i < 1000 && time.Since(base) > time.Millisecond; i++ { // the two must be of one time
		base, mono = time.Now(), boottime.Monotonic()
	}
	r := &Reconciler{
		store: store, disk: store, networks: slices.Clone(networks), source: podsource.Union(source), opts: opts,
		sleep: sleep, sem: make(chan struct{}, 1), trigger: make(chan struct{}, 1),
		now: func() reading {
			now := time.Now()
			return reading{wall: now.Round(0), mono: mono + now.Sub(base), boot: uptime.Since(), now: now}
		},
	}
	_, r.fixed = source.(podsource.Static)
	r.clock.observe(r.now()) // it notices steps from here on, not only from the first pass on
	return r, nil
}

// Reconcile runs one pass: it lists the reservations, calls the source, decides, and
// releases what leaked. When ctx ends it stops waiting for another pass, for the source
// and for the plugin's lock.
//
// Beside an error the report still says what was done (R11). A release that failed does
// not stop the others; the error joins the first of these errors. See [ErrRefused],
// [hostlocal.ErrLocked]. If no pass began, because ctx ended while another one was under way, the
// report is empty.
func (r *Reconciler) Reconcile(ctx context.Context) (Report, error) {
	return r.reconcile(ctx, occasion{})
}

// An occasion says how a pass was called.
type occasion struct {
	hook   bool // AtStartup: does not ask the source if nothing is reserved
	noADD  bool // the hook's assertion (R5)
	inLoop bool // an answer must not be older than two intervals
}

func (r *Reconciler) reconcile(ctx context.Context, o occasion) (report Report, err error) {
	if err := ctx.Err(); err != nil { // also if no pass is under way (hazard 98)
		return Report{}, fmt.Errorf("beginning a pass: %w", err)
	}
	select {
	case r.sem <- struct{}{}:
	case <-ctx.Done():
		return Report{}, fmt.Errorf("waiting for another pass to end: %w", ctx.Err())
	}
	defer func() { <-r.sem }()
	err = r.pass(ctx, o, &report)
	report.Err = err
	if r.opts.OnReport != nil {
		defer recoverPanic("OnReport", &err)
		r.opts.OnReport(report, err)
	}
	return report, err
}

// recoverPanic, when deferred, adds a panic of the caller's code to an error (R13): of its context,
// logger or OnReport.
func recoverPanic(what string, err *error) {
	if p := recover(); p != nil {
		*err = errors.Join(*err, fmt.Errorf("%s panicked: %v\n%s", what, p, debug.Stack()))
	}
}

// read takes a reading of the clocks, and writes a step into the memory as soon as one is seen: this
// process may end before the pass does.
func (r *Reconciler) read(ctx context.Context, report *Report) reading {
	now := r.now()
	if r.clock.observe(now); r.clock.unsaved {
		r.useMemory(ctx, report, true)
	}
	return now
}

// pass lists, asks, decides, releases and reports, in this order.
func (r *Reconciler) pass(ctx context.Context, o occasion, report *Report) (err error) {
	defer recoverPanic("pass", &err)
	begun := time.Now()
	r.clock.listed = false
	defer func() { report.Duration = time.Since(begun) }()
	report.DataDir, report.Started = r.store.DataDir(), r.read(ctx, report).wall
	list, err := onDisk(ctx, &r.onDisk, &r.opts, r.disk.List) // R1: what appears from here on is not a candidate
	if err != nil {
		return err
	}
	all, there := list.Reservations, list.Networks
	report.DataDirMissing = there == nil
	networks, allNetworks := r.networks, r.networks[0] == AllNetworks
	if allNetworks {
		networks = there
	}
	report.Networks = slices.Clone(networks)
	report.Missing = slices.DeleteFunc(slices.Clone(networks), func(n string) bool { return slices.Contains(there, n) })
	unreadable := listErrors(&list, r.store.DataDir(), networks)
	s := &snapshot{
		clock: &r.clock, at: r.read(ctx, report), opts: &r.opts, dirs: there, networks: networks, allNetworks: allNetworks, noADD: o.noADD,
	}
	r.clock.see(s.at, all)
	r.useMemory(ctx, report, false)
	r.clock.listed = true
	s.reservations = r.clock.files
	named := func(res hostlocal.Reservation) bool { return slices.Contains(networks, res.Network) }
	var refused error
	if !o.hook || slices.ContainsFunc(all, named) {
		var decisions []decision
		var in time.Duration
		if decisions, in, refused = r.ask(ctx, o, s, report); refused == nil {
			err = r.release(ctx, s, decisions, report)
			report.write(s, decisions, in)
		} else {
			report.list(s, slices.Repeat([]decision{{reason: SourceFailed}}, len(all)))
			err = fmt.Errorf("%w: %w", ErrRefused, refused)
		}
	}
	r.useMemory(ctx, report, true)
	if refused == nil {
		r.log(report)
	} else if o.hook {
		r.opts.Logger.Info("No answer of the pod sources counts yet", "dataDir", report.DataDir, "error", refused.Error())
	}
	return errors.Join(unreadable, err)
}

// ask adds the answers of the sources to the snapshot and the report, and decides. It takes one
// look, or two at least a second apart if R5 requires two for a release. An error means that no
// answer counts.
func (r *Reconciler) ask(ctx context.Context, o occasion, s *snapshot, report *Report) ([]decision, time.Duration, error) {
	for {
		began := r.read(ctx, report)
		answers, err := r.listPods(ctx)
		report.addLook(answers)
		now := r.read(ctx, report)
		if err != nil {
			return nil, 0, err
		}
		if err := r.check(answers, s.at, o.inLoop); err != nil {
			return nil, 0, err
		}
		s.addLook(answers, began, now)
		r.clock.seePods(now, answers)
		if decisions, in := decide(s); decisions != nil {
			return decisions, in, nil
		}
		for i := range s.evidence[0] {
			s.evidence[0][i].keep()
		}
		if !r.sleep(ctx, betweenLooks) {
			return nil, 0, fmt.Errorf("waiting to ask the pod source again: %w", ctx.Err())
		}
	}
}

// release removes the reservations that were decided to be leaks. Their decisions then say what became of them.
func (r *Reconciler) release(ctx context.Context, s *snapshot, decisions []decision, report *Report) error {
	if r.opts.DryRun {
		return nil
	}
	var leaks []*hostlocal.Reservation
	for i := range decisions {
		d, res := &decisions[i], s.reservations[i].Reservation
		if leaked(d.reason) && (r.opts.Only == nil || r.opts.Only(res)) {
			leaks, d.reason = append(leaks, res), ReleaseFailed // unless the file system answers
		}
	}
	done, err := onDisk(ctx, &r.onDisk, &r.opts, func(ctx context.Context) (hostlocal.ReleaseResult, error) {
		return r.disk.Release(ctx, leaks...)
	})
	report.LockHeld, report.LongestHold = done.LockHeld, done.LongestHold
	next := 0
	for i, outcome := range done.Outcomes {
		next += slices.IndexFunc(decisions[next:], func(d decision) bool { return d.reason == ReleaseFailed })
		d, res := &decisions[next], leaks[i]
		if d.reason = outcomes[outcome]; d.reason == ReleasedLeak && res.Owner == hostlocal.Empty {
			d.reason = ReleasedEmpty
		}
		res.Err = done.Errs[i]
		next++
	}
	return err
}

// outcomes maps the outcome of a release to its reason.
var outcomes = map[hostlocal.Outcome]Reason{
	hostlocal.NotTried: NotTried, hostlocal.Released: ReleasedLeak, hostlocal.Changed: FileChanged,
	hostlocal.Gone: FileGone, hostlocal.Failed: ReleaseFailed,
}

// listErrors returns an error about each network in whose place is a regular file, while the other
// networks are released in, and one with the first file that can't be read and their number. The
// report has the others.
func listErrors(list *hostlocal.Listing, dataDir string, networks []string) error {
	var errs, unreadable []error
	for _, n := range networks {
		if slices.Contains(list.NotDirs, n) {
			errs = append(errs, fmt.Errorf("%s is a regular file, not a directory, so host-local can reserve nothing in network %s: "+
				"remove the file, or name another network", filepath.Join(dataDir, n), n))
		}
	}
	for i := range list.Reservations {
		if err := list.Reservations[i].Err; err != nil {
			unreadable = append(unreadable, err)
		}
	}
	if n := len(unreadable); n > 1 {
		unreadable = []error{fmt.Errorf("%d reservations can't be read; see the report for all; the first: %w", n, unreadable[0])}
	}
	return errors.Join(append(errs, unreadable...)...)
}
