// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"time"
)

// Start runs AtStartup, unless that was called before, and then a pass every Options.Interval until ctx ends. The
// next pass comes earlier at [Report.NextCheck], when [Reconciler.Trigger] is called,
// and after an error. These shorter pauses grow up to the interval as long as passes
// end in errors or release nothing. Start logs errors and goes on. It makes no assertion: an
// agent that has one calls AtStartup itself before Start.
//
// It returns nil when ctx ends. It leaves no goroutine behind, except that of a source
// that ignores its context. With NeedLeaderElection a Reconciler is a Runnable of
// controller-runtime's manager.
func (r *Reconciler) Start(ctx context.Context) error {
	last := r.started.Swap(nil)
	for ; last == nil; last = r.started.Swap(nil) { // another Start runs it anew
		_, _ = r.AtStartup(ctx)
	}
	report, err := *last, last.Err
	var p pauses
	for ctx.Err() == nil {
		pause, floor := p.after(&report, err, r.opts.Interval)
		if err != nil {
			func() {
				defer recoverPanic("logger", new(error))
				r.opts.Logger.Error(err, "Releasing leaked addresses; trying again later", "in", pause.String())
			}()
		}
		sleep(ctx, floor)
		select {
		case <-ctx.Done():
		case <-time.After(pause - floor):
		case <-r.trigger:
		}
		limited, cancel := context.WithTimeout(ctx, r.opts.Interval+time.Minute)
		report, err = r.reconcile(limited, occasion{inLoop: true})
		cancel()
	}
	return nil
}

// NeedLeaderElection returns false: every node runs its own Reconciler.
func (r *Reconciler) NeedLeaderElection() bool { return false }

// Trigger asks Start for a pass now, as when an agent finds no free address. The pass
// begins five seconds after the last one at the earliest; after a pass that ended in
// [ErrRefused], not before its pause is over. Trigger never blocks. Several calls
// before the pass begins lead to one pass, or to a second one if one of them came just as a pause ended.
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

// pauses has what the next pause between passes depends on.
type pauses struct {
	failures int // passes in a row that ended in an error
	rechecks int // passes in a row that came early and released nothing
}

// after returns the pause after a pass, and its floor, which Trigger does not shorten.
func (p *pauses) after(report *Report, err error, interval time.Duration) (pause, floor time.Duration) {
	refused := err != nil && (errors.Is(err, ErrRefused) || len(report.Reservations) == 0)
	pause, floor = jitter(interval, 0.1), triggerFloor
	switch {
	case err != nil && report.NextCheck.IsZero():
		pause = min(pause, jitter(minPause<<min(p.failures, 20), 0.5))
		p.failures++
	case report.NextCheck.IsZero():
		*p = pauses{}
	default: // also if a file can't be read or removed: the others are still due
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
