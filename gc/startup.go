// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// AtStartup is the hook for an agent's start: one pass, as soon as the source
// gives an answer that counts. As long as it gives none, because it is not ready
// ([podsource.ErrIncomplete]), fails, or sees no pod at all, AtStartup asks it
// again with growing pauses. Each time the reservations are listed anew, so that
// nothing grows old while it waits (R1, R5).
//
// It returns within Options.StartupTimeout, and when ctx ends, also when the
// source ignores its context. The error says what it waited for; the agent may
// log it and go on (R13). The report is that of the last pass.
func (r *Reconciler) AtStartup(ctx context.Context) (Report, error) {
	limit := r.opts.startupTimeout()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	pause := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 100, Cap: 5 * time.Second}
	var last error // what the source said before the time was up
	for try := 1; ; try++ {
		report, err := r.Reconcile(ctx)
		var refused *refusal
		if !errors.As(err, &refused) {
			return report, err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if !sleep(ctx, pause.Step()) {
			return report, fmt.Errorf("nothing was released at start-up: gave up after %v and %d tries: %w",
				time.Since(begun).Round(time.Millisecond), try, last)
		}
		r.opts.Logger.V(2).Info("Waiting for the pod source", "network", report.Network, "try", try, "reason", err.Error())
	}
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
