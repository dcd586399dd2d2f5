// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// ErrNoPods is returned, wrapped, when a source reports no pod at all, not even
// one in the node's network, and the caller did not say that this is normal
// (R9). Nothing was released.
var ErrNoPods = errors.New("pod source reports no pod at all")

// A refusal is the error of a pass that got no answer that counts. Asking again
// later may help.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// A Reconciler releases what leaked in one network. Its methods may be called
// from several goroutines; passes run one at a time. Make one for the life of
// the process, not one a pass: it watches the node's clock from pass to pass
// (R5).
type Reconciler struct {
	store  *hostlocal.Store
	source podsource.Source
	opts   Options
	base   time.Time     // where the monotonic readings count from
	turn   chan struct{} // holds a token during a pass, which guards clock
	wanted chan struct{} // holds a token when Trigger was called
	asking chan struct{} // holds a token while the source works
	clock  clock
}

// New returns a Reconciler for the store's network and touches nothing.
func New(store *hostlocal.Store, source podsource.Source, opts Options) *Reconciler {
	base := time.Now()
	return newAt(store, source, opts, base, moment{wall: base.Round(0)})
}

// newAt is New at a moment of the caller's. The clock is watched from here on,
// not only from the first pass on.
func newAt(store *hostlocal.Store, source podsource.Source, opts Options, base time.Time, at moment) *Reconciler {
	r := &Reconciler{
		store: store, source: source, opts: opts, base: base,
		turn: make(chan struct{}, 1), wanted: make(chan struct{}, 1), asking: make(chan struct{}, 1),
	}
	r.clock.observe(at)
	return r
}

// Reconcile does one pass: it lists the reservations, asks the source, judges,
// and releases what leaked. A pass that waits for another one to end, for the
// source or for the plugin's lock gives up when ctx ends.
//
// With an error the report still says what was done (R11): a release that failed
// does not stop the others, and their errors come joined. An error of the
// source, or a list of pods that can't be right, means that nothing was
// released (R2, R9).
func (r *Reconciler) Reconcile(ctx context.Context) (report Report, err error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return Report{}, fmt.Errorf("waiting for another pass to end: %w", ctx.Err())
	}
	defer func() { <-r.turn }()
	report, err = guarded(func() (Report, error) {
		return r.pass(ctx, func() moment {
			now := time.Now()
			return moment{wall: now.Round(0), mono: now.Sub(r.base)}
		})
	})
	if r.opts.OnReport != nil {
		_, told := guarded(func() (Report, error) {
			r.opts.OnReport(report, err)
			return Report{}, nil
		})
		err = errors.Join(err, told)
	}
	return report, err
}

// guarded makes an error of a panic (R13): the caller's context, logger and
// OnReport run inside a pass, too.
func guarded(do func() (Report, error)) (report Report, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.Join(err, fmt.Errorf("pass panicked: %v\n%s", p, debug.Stack()))
		}
	}()
	return do()
}

// pass is Reconcile by the clocks that read reads.
func (r *Reconciler) pass(ctx context.Context, read func() moment) (report Report, err error) {
	if r.store == nil || r.source == nil {
		return Report{}, errors.New("reconciler was made without a store or without a pod source")
	}
	begun := time.Now()
	defer func() { report.Duration = time.Since(begun) }()
	at := read()
	r.clock.observe(at)
	report = Report{Network: r.store.Network(), DataDir: r.store.DataDir(), Started: at.wall}

	// R1: what appears from here on is not a candidate.
	w := world{clock: &r.clock, at: at, minAge: r.opts.minAge()}
	if err := r.list(ctx, &w); err != nil {
		return report, err
	}
	refuse := func(why Reason, err error) (Report, error) {
		report.Reservations = entries(&w, func(int) judgement { return judgement{why, nobody} })
		return report, errors.Join(append(w.problems(), err)...)
	}
	if r.opts.ReadAll || r.opts.DryRun || w.minAge < time.Second {
		// Without a minimum age nothing else tells a reservation that came in
		// the place of a listed one while the source was asked.
		if err := r.readOwners(ctx, &w, everything, nil); err != nil {
			return refuse(NotJudged, err)
		}
	}
	asked := time.Now()
	pods, err := r.ask(ctx)
	report.SourceDuration = time.Since(asked)
	if err != nil {
		return refuse(NoAnswer, &refusal{err})
	}
	if len(pods) == 0 && !r.opts.AllowEmpty {
		return refuse(EmptyView, &refusal{fmt.Errorf("%w: its view may be of another node, or not complete; "+
			"if this node may really be empty, set AllowEmpty", ErrNoPods)})
	}
	now := read()
	r.clock.observe(now)
	w.view = newView(pods, &r.clock, at, now, r.opts.finishedFor())
	w.here.claims = w.view.claimsOn(w.here.rs)
	for i := range w.siblings {
		w.siblings[i].claims = w.view.claimsOn(w.siblings[i].rs)
	}
	judged, err := r.judge(ctx, &w)
	if err != nil {
		return refuse(NotJudged, err)
	}
	report.Duplicates = w.view.duplicates(&w.here)
	report.Unreserved = w.view.unreserved(&w.here, w.siblings)
	errs := w.problems()
	if !r.opts.DryRun {
		errs = append(errs, r.release(ctx, &w, judged, &report))
	}
	report.Reservations = entries(&w, func(i int) judgement { return judged[i] })
	report.NextCheck = nextCheck(w, judged, r.opts.finishedFor())
	r.log(&report)
	return report, errors.Join(errs...)
}

// list takes the identities of all reservations, here and in the siblings.
func (r *Reconciler) list(ctx context.Context, w *world) (err error) {
	if w.here.rs, err = r.store.Scan(ctx); err != nil {
		return err
	}
	w.siblings = make([]network, len(r.opts.Siblings))
	for i, s := range r.opts.Siblings {
		if w.siblings[i].rs, err = s.Scan(ctx); err != nil {
			return fmt.Errorf("sibling network %s: %w", s.Network(), err)
		}
	}
	return nil
}

// judge reads the owners that are needed, and decides. First those of what no
// live pod claims, and of what is claimed by pods whose containers are known
// (for R10). Only when something would be released whose owner might hold an
// address in use (R3), also all others that are claimed: most passes find no
// leak and save the larger part of the work.
func (r *Reconciler) judge(ctx context.Context, w *world) ([]judgement, error) {
	if err := r.readOwners(ctx, w, doubtful, w.view.name); err != nil {
		return nil, err
	}
	judged := make([]judgement, len(w.here.rs))
	decide(*w, judged)
	if !w.unreadClaims() {
		return judged, nil
	}
	leaks := where(judged, func(why Reason) bool { return why == Unowned })
	if len(leaks) == 0 {
		return judged, nil
	}
	suspects := make(map[string]string, len(leaks))
	for _, i := range leaks {
		id := w.here.rs[i].ContainerID
		suspects[id] = id
	}
	err := r.readOwners(ctx, w, claimed, func(containerID []byte) (string, bool) {
		id, ok := suspects[string(containerID)]
		return id, ok
	})
	if err != nil {
		return nil, err
	}
	decide(*w, judged)
	return judged, nil
}

// where returns the indexes of those judgements whose reason is as asked for.
func where(judged []judgement, is func(Reason) bool) []int {
	n := 0
	for _, j := range judged {
		if is(j.reason) {
			n++
		}
	}
	at := make([]int, 0, n)
	for i, j := range judged {
		if is(j.reason) {
			at = append(at, i)
		}
	}
	return at
}

// unreadClaims reports whether any address in use has an owner that was not
// read: one that may be a suspect's.
func (w *world) unreadClaims() bool {
	unread := func(n *network) bool {
		for i := range n.rs {
			if n.claims.first[i] != nobody && n.rs[i].Owner == hostlocal.Unread {
				return true
			}
		}
		return false
	}
	for i := range w.siblings {
		if unread(&w.siblings[i]) {
			return true
		}
	}
	return unread(&w.here)
}

// A selection says which owners readOwners is to read.
type selection func(w *world, n *network, i int) bool

func everything(*world, *network, int) bool { return true }

func claimed(_ *world, n *network, i int) bool { return n.claims.first[i] != nobody }

func doubtful(w *world, n *network, i int) bool {
	return n == &w.here && (!claimed(w, n, i) || w.view.named(&n.claims, i))
}

// readOwners reads the selected owners of all networks. Errors about single
// reservations are left to the judgement, and to the end of the pass.
func (r *Reconciler) readOwners(ctx context.Context, w *world, selected selection, name func([]byte) (string, bool)) error {
	read := func(s *hostlocal.Store, n *network) error {
		failures, err := s.ReadOwners(ctx, n.rs, func(i int) bool { return selected(w, n, i) }, name)
		for i, err := range failures {
			n.fail(i, err)
		}
		return err
	}
	if err := read(r.store, &w.here); err != nil {
		return err
	}
	for i, s := range r.opts.Siblings {
		if err := read(s, &w.siblings[i]); err != nil {
			return fmt.Errorf("sibling network %s: %w", s.Network(), err)
		}
	}
	r.clock.sight(w.at, w.here.rs)
	return nil
}

// release removes what was judged leaked, and turns those judgements into what
// became of it.
func (r *Reconciler) release(ctx context.Context, w *world, judged []judgement, report *Report) error {
	index := where(judged, func(why Reason) bool { return why.Verdict() == Leaked })
	done, err := r.store.ReleaseAt(ctx, w.here.rs, index)
	report.LockHeld, report.LongestHold = done.LockHeld, done.LongestHold
	for n, outcome := range done.Outcomes {
		judged[index[n]].reason = reasonOf(outcome, judged[index[n]].reason)
		if err := done.Errs[n]; err != nil {
			w.here.fail(index[n], err)
		}
	}
	return err
}

// reasonOf says what became of a reservation that was judged leaked for a
// reason.
func reasonOf(o hostlocal.Outcome, leak Reason) Reason {
	switch o {
	case hostlocal.Released:
		if leak == EmptyOwner {
			return ReleasedEmpty
		}
		return ReleasedLeak
	case hostlocal.Changed:
		return FileChanged
	case hostlocal.Gone:
		return FileGone
	case hostlocal.Failed:
		return ReleaseFailed
	default:
		return NotTried
	}
}
