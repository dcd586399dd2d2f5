// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Start does the hook, and then a pass every Options.Interval until ctx ends. A
// pass comes earlier when the last report says that a second look is worth it by
// then, when [Reconciler.Trigger] was called, and after an error, with pauses
// that grow up to the interval. Errors are logged, and Start goes on.
//
// It returns nil when ctx ends, and leaves no goroutine behind but that of a
// source which ignores its context. With NeedLeaderElection it is a Runnable of
// controller-runtime's manager.
func (r *Reconciler) Start(ctx context.Context) error {
	report, err := r.AtStartup(ctx)
	failures := 0
	for ctx.Err() == nil {
		if failures++; err == nil {
			failures = 0
		}
		pause := r.pause(report, failures)
		if err != nil {
			r.opts.Logger.Error(err, "Collecting leaked addresses; trying again later", "network", report.Network, "in", pause.String())
		}
		if !r.await(ctx, pause) {
			break
		}
		report, err = r.bounded(ctx)
	}
	return nil
}

// NeedLeaderElection reports false: every node runs its own, leader or not.
func (r *Reconciler) NeedLeaderElection() bool { return false }

// Trigger asks Start for a pass now: an agent calls it when its pool has just
// run dry. It never blocks, and many calls before that pass begins melt into one.
func (r *Reconciler) Trigger() {
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

// shortest is the shortest pause between two passes that nobody triggered.
const shortest = time.Second

// pause says how long to wait after a pass that gave this report, and was the
// given number of failures in a row.
func (r *Reconciler) pause(report Report, failures int) time.Duration {
	interval := r.opts.interval()
	pause := wait.Jitter(interval, 0.1)
	if failures > 0 {
		return min(pause, wait.Jitter(shortest<<min(failures-1, 20), 0.5))
	}
	if !report.NextCheck.IsZero() {
		pause = min(pause, max(shortest, time.Until(report.NextCheck)))
	}
	return pause
}

// await waits for the pause to end, or for Trigger. It reports whether there is
// to be another pass.
func (r *Reconciler) await(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-r.wanted:
	}
	return ctx.Err() == nil
}

// bounded is a pass that takes no longer than an interval, whatever it has to
// wait for.
func (r *Reconciler) bounded(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.opts.interval(), r.opts.startupTimeout()))
	defer cancel()
	return r.Reconcile(ctx)
}
