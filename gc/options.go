// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Options say how a Reconciler works. The zero value is the safe default. A
// duration is zero for its default, or within the bounds that its comment names;
// anything else is an error of [New].
type Options struct {
	// RuntimeRequestTimeout is kubelet's setting of that name, T in the rules: the
	// node's runtime may take twice as long for an ADD. Zero is 2 minutes,
	// kubelet's default; from 1 second to 1 hour. From it follows L, how long a runtime
	// may take to list a container after its address was reserved: 2 T and 3
	// minutes.
	RuntimeRequestTimeout time.Duration
	// MinAge is how old a reservation must be to be released (R5). Zero is L; from
	// 1 second to 30 days. A value below L counts only in passes in which sources
	// saw every ADD under way, every address, and every attachment since its ADD
	// ended; in others L counts, and the report says so.
	MinAge time.Duration
	// StartingFor is how old a reservation must be before a source that names
	// containers, and does not name its owner, ends the claim of a pod that is
	// starting (R4). Zero is the least that is allowed, 2 T and 10 minutes;
	// at most 30 days.
	StartingFor time.Duration
	// ReleaseForms are forms of container IDs whose reservations may be released
	// although none of the sources could know such containers (R14).
	ReleaseForms []podsource.Form
	// Only, if set, says which reservations may be released, of those that leaked: the
	// others are reported as Leaked. It is called for each leak, before its release,
	// and must not change it.
	Only func(*hostlocal.Reservation) bool
	// DryRun judges and releases nothing: it writes nothing, takes no lock, and
	// calls Leaked what would have been Released.
	DryRun bool
	// SourceTimeout is how long one question to the source may take (R13). Zero
	// is 15 seconds; from 1 millisecond to 24 hours.
	SourceTimeout time.Duration
	// StartupTimeout is how long AtStartup may take in all. Zero is 30 seconds;
	// from 1 millisecond to 24 hours.
	StartupTimeout time.Duration
	// Interval is how long Start waits from pass to pass when nothing calls for
	// one before, with jitter of a tenth to spread load. Zero is 10 minutes; at
	// least 1 second, at most 24 hours.
	Interval time.Duration
	// OnReport, if set, is called after each pass with what Reconcile returns,
	// for whoever counts. It runs in the pass's goroutine, and no other pass
	// begins before it returns: it must not call Reconcile.
	OnReport func(Report, error)
	// Logger takes what happens: one line a pass and one a release at V(0), as
	// well as passes of Start that ended in an error; kept candidates at V(2);
	// the rest at V(4). The zero Logger is silent.
	Logger logr.Logger
}

// What the zero Options stand for.
const (
	DefaultRuntimeRequestTimeout = 2 * time.Minute
	DefaultMinAge                = 2*DefaultRuntimeRequestTimeout + lagMargin
	DefaultStartingFor           = 2*DefaultRuntimeRequestTimeout + startingMargin
	DefaultStartupTimeout        = 30 * time.Second
	DefaultInterval              = 10 * time.Minute
)

const (
	lagMargin      = 3 * time.Minute  // CRI-O holds a timed-out sandbox for two minutes more
	startingMargin = 10 * time.Minute // what R4 allows a pod beyond the ADD of its sandbox
)

// withDefaults fills in what is zero, and refuses what is out of bounds.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	set := func(name string, d *time.Duration, byDefault, least, most time.Duration) {
		*d = cmp.Or(*d, byDefault)
		if *d < least || *d > most {
			errs = append(errs, fmt.Errorf("%s is %v; it must be from %v to %v", name, *d, least, most))
		}
	}
	const day = 24 * time.Hour
	set("RuntimeRequestTimeout", &o.RuntimeRequestTimeout, DefaultRuntimeRequestTimeout, time.Second, time.Hour)
	set("MinAge", &o.MinAge, o.lag(), time.Second, 30*day)
	startingFor := 2*o.RuntimeRequestTimeout + startingMargin
	set("StartingFor", &o.StartingFor, startingFor, startingFor, 30*day)
	set("SourceTimeout", &o.SourceTimeout, 15*time.Second, time.Millisecond, day)
	set("StartupTimeout", &o.StartupTimeout, DefaultStartupTimeout, time.Millisecond, day)
	set("Interval", &o.Interval, DefaultInterval, time.Second, day)
	for _, f := range o.ReleaseForms {
		if f != podsource.AnyForm && !strings.HasSuffix(string(f), string(podsource.Hex64)) {
			errs = append(errs, fmt.Errorf("%q in ReleaseForms is no form: it must be AnyForm, or Hex64 with or without a prefix", f))
		}
	}
	return o, errors.Join(errs...)
}

// lag is L: how long a runtime may take to list a container.
func (o *Options) lag() time.Duration { return 2*o.RuntimeRequestTimeout + lagMargin }
