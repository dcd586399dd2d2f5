// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An Assertion is a fact that the caller of [Reconciler.AtStartup] knows and no source
// can know.
type Assertion uint8

// NoADDInFlight asserts that no CNI ADD is in flight in the networks of the caller's record,
// that none begins before AtStartup returns, and that the record names every container whose
// ADD has ended. Only an agent that serves all ADDs there, and has not begun to, can know this.
// A reservation of which the record speaks is then released whatever its age, and whatever pods
// are starting (R4, R5). A record is [podsource.Attachments], or any source but a cache that
// names containers at once (AtOnce). A list from before the call counts if its AsOf is set and
// later than the reservation. The assertion counts for that one call of AtStartup.
const NoADDInFlight Assertion = 1

// AtStartup is the hook for an agent's start: one pass, as soon as the source gives a
// valid answer. While it gives none ([ErrRefused]), AtStartup tries again with growing
// pauses, unless the error is [podsource.ErrPermanent] or the source is a list that never
// changes ([podsource.Static]). Each try lists the reservations anew, so that none grows old
// during the wait (R1, R5). If nothing is reserved in the networks to release in, AtStartup
// returns at once and does not call the source.
//
// It returns within Options.StartupTimeout, and when ctx ends, also when the source
// ignores its context. The error says what it waited for; the agent may log it and go
// on (R13). The report is that of the last pass.
func (r *Reconciler) AtStartup(ctx context.Context, assertions ...Assertion) (report Report, err error) {
	defer func() {
		report.Err = err
		r.started.Store(&report)
	}()
	ctx, cancel := context.WithTimeout(ctx, r.opts.StartupTimeout)
	defer cancel()
	o := occasion{hook: true, noADD: slices.Contains(assertions, NoADDInFlight)}
	begun, pause := time.Now(), 200*time.Millisecond
	var last error // of the source, from before the time was up
	for try := 1; ; try++ {
		report, err = r.reconcile(ctx, o)
		if !errors.Is(err, ErrRefused) || errors.Is(err, podsource.ErrPermanent) || r.fixed {
			return report, err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if !sleep(ctx, jitter(pause, 0.5)) {
			return report, fmt.Errorf("nothing was released at start-up: gave up after %v and %d tries: %w",
				time.Since(begun).Round(time.Millisecond), try, last)
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// jitter returns d or up to a fraction more, to spread load. A remainder of the time in nanoseconds is
// random enough.
func jitter(d time.Duration, fraction float64) time.Duration {
	const prime = 10007
	return d + time.Duration(fraction*float64(d)*float64(time.Now().UnixNano()%prime)/prime)
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err() == nil
}
