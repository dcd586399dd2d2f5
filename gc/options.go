// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"time"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// DefaultMinAge is the minimum age that the zero Options stand for.
//
// It covers the time between an ADD and the first answer of a source that shows
// its pod: a runtime lists a sandbox only after its ADD, and kubelet allows
// RunPodSandbox twice its runtimeRequestTimeout, 4 minutes by default. The rest
// is for the source: an answer must not be staler than a minute.
const DefaultMinAge = 5 * time.Minute

// NoADDInFlight, as Options.MinAge, is the word of a caller who knows that no
// ADD is in flight anywhere on this node and none begins before the pass ends:
// it serves the ADDs itself and has not begun to. Then no reservation is too
// young to be judged (R5).
const NoADDInFlight time.Duration = -1

// Options say how a Reconciler works. The zero value is the safe default.
type Options struct {
	// MinAge is how old a reservation must be to be released (R5). Zero is
	// [DefaultMinAge]. It must cover the time for which an ADD may be in flight
	// and the staleness of the source's answers together.
	MinAge time.Duration
	// DryRun judges and releases nothing: it writes nothing, takes no lock, and
	// calls Leaked what would have been Released. As its report is there to be
	// read, it reads every owner, as ReadAll does.
	DryRun bool
	// ReadAll reads the owner of every reservation, also where the verdict does
	// not need it, so that the report shows container ID and time of each. A
	// pass with a source of addresses takes several times as long with it.
	ReadAll bool
	// AllowEmpty takes a source's word for it that the node has no pod at all.
	// Without it such an answer is [ErrNoPods] (R9).
	AllowEmpty bool
	// Siblings are other networks of the same data dir. A container that has an
	// address in use in one of them is live, so whatever it holds here is in use
	// too (R3). Without them a second network whose addresses no source reports
	// is safe only with a source that knows container IDs.
	Siblings []*hostlocal.Store
	// StartupTimeout is how long AtStartup may take in all. Zero is
	// [DefaultStartupTimeout].
	StartupTimeout time.Duration
	// Interval is how long Start waits from pass to pass when nothing calls for
	// one before. It is jittered by a tenth, so that a fleet does not march in
	// step, and it (or StartupTimeout, if longer) is the most that one of its passes may
	// take. Zero is
	// [DefaultInterval].
	Interval time.Duration
	// OnReport, if set, is called after each pass with what Reconcile returns,
	// for whoever counts. It runs in the pass's goroutine, and no other pass
	// begins before it returns: it must not call Reconcile.
	OnReport func(Report, error)
	// Logger takes what happens: releases at V(0), as well as passes of Start
	// that ended in an error; kept candidates at V(2); the rest at V(4). The zero
	// Logger is silent.
	Logger logr.Logger
}

// What the zero Options stand for.
const (
	DefaultStartupTimeout = 30 * time.Second
	DefaultInterval       = 10 * time.Minute
)

func (o Options) startupTimeout() time.Duration {
	if o.StartupTimeout <= 0 {
		return DefaultStartupTimeout
	}
	return o.StartupTimeout
}

func (o Options) interval() time.Duration {
	if o.Interval <= 0 {
		return DefaultInterval
	}
	return o.Interval
}

func (o Options) minAge() time.Duration {
	switch {
	case o.MinAge == 0:
		return DefaultMinAge
	case o.MinAge < 0:
		return 0
	}
	return o.MinAge
}

// finishedFor is how long ago a pod must have finished to hold nothing. Its
// sandbox may be up for a while whether ADDs are in flight or not.
func (o Options) finishedFor() time.Duration {
	if o.MinAge <= 0 {
		return DefaultMinAge
	}
	return o.MinAge
}
