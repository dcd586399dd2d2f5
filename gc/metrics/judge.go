// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A result is how a pass ended.
type result uint8

const (
	ok      result = iota
	refused        // no answer of the source that counts: nothing was judged (R2, R9)
	failed         // every other error
	results        // how many there are
)

func (r result) String() string {
	return [results]string{ok: "ok", refused: "refused", failed: "failed"}[r]
}

// resultOf tells by report and error how a pass ended. Where the folder is
// empty no reservation says why it was not judged; then an error that came
// after the source was asked is taken for the source's.
func resultOf(report *gc.Report, err error) result {
	switch {
	case err == nil:
		return ok
	case errors.Is(err, gc.ErrNoPods):
		return refused
	case len(report.Reservations) == 0 && report.SourceDuration == 0:
		return failed
	}
	for i := range report.Reservations {
		if r := report.Reservations[i].Reason; r != gc.NoAnswer && r != gc.EmptyView {
			return failed
		}
	}
	return refused
}

// listed reports whether the pass could list the folder, so that no reservation
// in the report means that there is none.
func listed(report *gc.Report, err error) bool {
	return len(report.Reservations) > 0 || resultOf(report, err) != failed
}

// oldestKeptLeak returns how old the oldest kept leak was when the pass began,
// or zero when there is none. It is not known when the pass judged nothing.
func oldestKeptLeak(report *gc.Report) (age time.Duration, known bool) {
	for i := range report.Reservations {
		e := &report.Reservations[i]
		switch e.Reason {
		case gc.NoAnswer, gc.EmptyView, gc.NotJudged:
			return 0, false // these are of a whole pass
		}
		if keptLeak(e.Reason) && e.Reservation != nil && !e.ReservedAt.IsZero() {
			age = max(age, report.Started.Sub(e.ReservedAt))
		}
	}
	return age, true
}

// keptLeak reports whether a reservation was kept although no live pod was found
// to hold it, and its time says how old it is.
func keptLeak(r gc.Reason) bool {
	switch r {
	case gc.Unowned, gc.EmptyOwner, gc.NotTried, gc.ReleaseFailed,
		gc.TooYoung, gc.PodStarting, gc.PodStartUnknown,
		gc.OwnerMalformed, gc.OwnerUnreadable,
		gc.OwnerInConflict, gc.SiblingUnreadable, gc.SiblingChanged:
		return true
	}
	return false
}
