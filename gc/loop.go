// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"time"
)

// Start does the hook, and then a pass every Options.Interval until ctx ends. A
// pass comes earlier when the last report says that a second look is worth it by
// then, when [Reconciler.Trigger] was called, and after an error. Pauses after
// errors, and those before passes that turned out to release nothing, grow up to
// the interval. Errors are logged, and Start goes on.
//
// It returns nil when ctx ends, and leaves no goroutine behind but that of a
// source which ignores its context. With NeedLeaderElection it is a Runnable of
// controller-runtime's manager.
func (r *Reconciler) Start(ctx context.Context) error {
	report, err := r.AtStartup(ctx)
	var p pauses
	for ctx.Err() == nil {
		pause, floor := p.after(&report, err, r.opts.Interval)
		if err != nil {
			_ = recoverPanic("logger", func() error {
				r.opts.Logger.Error(err, "Releasing leaked addresses; trying again later", "in", pause.String())
				return nil
			})
		}
		if !r.await(ctx, pause, floor) {
			break
		}
		report, err = r.reconcileWithTimeout(ctx)
	}
	return nil
}

// NeedLeaderElection reports false: every node runs its own, leader or not.
func (r *Reconciler) NeedLeaderElection() bool { return false }

// Trigger asks Start for a pass now: an agent calls it when its pool has just
// run dry. The pass comes five seconds after the last one at the earliest, and not
// before its pause is over where no answer counted. Trigger never blocks, and many calls before that
// pass begins lead to one.
func (r *Reconciler) Trigger() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}

const (
	minPause     = time.Second      // after an error
	minRecheck   = 15 * time.Second // before a pass that a report asked for
	triggerFloor = 5 * time.Second  // before a pass that Trigger asked for
)

// pauses is what the pauses between passes depend on.
type pauses struct {
	failures int // passes in a row that ended in an error
	rechecks int // passes in a row that came early and released nothing
}

// after returns how long to wait after a pass, and for how long of that also
// Trigger has to.
func (p *pauses) after(report *Report, err error, interval time.Duration) (pause, floor time.Duration) {
	refused := err != nil && (errors.Is(err, ErrRefused) || len(report.Reservations) == 0)
	pause, floor = jitter(interval, 0.1), triggerFloor
	switch {
	case err != nil && report.NextCheck.IsZero():
		pause = min(pause, jitter(minPause<<min(p.failures, 20), 0.5))
		p.failures++
	case report.NextCheck.IsZero():
		*p = pauses{}
	default: // also beside a file that can't be read or removed: the others go on
		if report.Counts()[Released] > 0 {
			p.rechecks = 0
		}
		pause = min(pause, jitter(max(minRecheck<<min(p.rechecks, 20), time.Until(report.NextCheck)), 0.1))
		*p = pauses{rechecks: p.rechecks + 1}
	}
	if refused {
		floor = pause
	}
	return pause, min(pause, floor)
}

// await waits for the pause to end, or, after its floor, for Trigger. It reports
// whether there is to be another pass.
func (r *Reconciler) await(ctx context.Context, pause, floor time.Duration) bool {
	if !sleep(ctx, floor) {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause - floor):
	case <-r.trigger:
	}
	select { // what was asked for before the pass is done by it
	case <-r.trigger:
	default:
	}
	return ctx.Err() == nil
}

// reconcileWithTimeout is a pass of the loop, which takes no longer than an
// interval and a minute, whatever it has to wait for.
func (r *Reconciler) reconcileWithTimeout(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Interval+time.Minute)
	defer cancel()
	return r.reconcile(ctx, occasion{inLoop: true})
}
