// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Options configure a Reconciler. The zero value is the safe default. A duration is
// zero for its default, or within the bounds in its comment; [New] refuses others.
type Options struct {
	// RuntimeRequestTimeout is kubelet's setting of that name, T in what follows. An
	// ADD may take 2 T, and the runtime lists a container at most L after its address
	// was reserved: 2 T and 3 minutes. Zero is 2 minutes, kubelet's default; from
	// 1 second to 1 hour.
	RuntimeRequestTimeout time.Duration
	// MinAge is how old a reservation must be to be released (R5). Zero is L; from
	// 1 second to 30 days. A value below L counts only in passes whose sources see
	// every ADD in flight, every address, and every attachment once its ADD has
	// ended. In other passes L counts, and the reason of what is younger is
	// NotYetListed. See SeesADDs, SeesAddresses and AtOnce of podsource.Answer.
	MinAge time.Duration
	// StartingFor is how old a reservation must be before a source that names such
	// containers, but not its own, ends the claim of a starting pod (R4). Sources that
	// together see every ADD in flight and name any container at once end it without
	// such a wait. Zero is 2 T and 10 minutes, which is also the minimum; at most 30 days.
	StartingFor time.Duration
	// AllowForeign are prefixes of owners, or "*" for any owner. A reservation whose owner
	// begins with one may be released although no source here could know such an owner:
	// free text, or the container of another runtime (R14). It does not help in a network
	// of which no source speaks.
	AllowForeign []string
	// Memory is the path of a file on a file system that a boot empties, such as /run, in
	// which this Reconciler keeps when it first saw each reservation, in some 150 bytes, and
	// what it saw of steps of the clock (R5). So a hook, a job or an agent that restarts gets
	// to the end of a wait. Several processes may use one file, also for several data
	// directories; its directory is made if it is missing, and locked during a change. No
	// other user may write in it. If the file can't be read or written, the report says so,
	// and waits begin with this process. Empty is none.
	Memory string
	// OwnADD, if it has a container, is the attachment for which the caller itself executes an
	// ADD, as an IPAM plugin does. What is reserved for it is of an ADD that has ended, from
	// before a crash or a reboot. In a pass whose sources see every ADD in flight and every
	// address, a reservation for it needs no age (R5), and a cache's entry from before the
	// boot does not hold it (R4). The sources must not name the caller's own ADD. All else
	// that is reserved for its container is kept, since the container lives.
	OwnADD podsource.Attachment
	// Only, if set, reports whether a leaked reservation may be released. Those for
	// which it returns false are reported as Leaked. It is called for each leak
	// before its release, and must not change the reservation.
	Only func(*hostlocal.Reservation) bool
	// DryRun makes passes release nothing, write nothing and take no lock. What they
	// would have released is reported as Leaked. They read Memory, and do not call Only.
	DryRun bool
	// SourceTimeout limits one call of the source, and one access to the disk, which may
	// take a second more to say what it did (R13). Zero is 15 seconds; from
	// 1 millisecond to 24 hours.
	SourceTimeout time.Duration
	// StartupTimeout limits AtStartup as a whole. Zero is 30 seconds; from
	// 1 millisecond to 24 hours.
	StartupTimeout time.Duration
	// Interval is the longest pause between passes of Start, plus a jitter of up to
	// a tenth to spread load. Zero is 10 minutes; from 1 second to 24 hours.
	Interval time.Duration
	// OnReport, if set, is called after each pass with what Reconcile returns, as
	// for metrics. It runs in the pass's goroutine, and no other pass begins before
	// it returns. It must not call Reconcile, nor change the report: the next pass compares with its
	// reservations, and one that was changed seems to be new.
	OnReport func(Report, error)
	// Logger gets a line for each of the first fifty releases of a pass, for each pass that
	// released something or found something wrong, and for each error of Start's passes at
	// V(0); for each other pass at V(1); for possible leaks that were kept at V(2); all else
	// at V(4). The zero Logger is silent.
	Logger logr.Logger
}

// DefaultMinAge is the default of Options.MinAge with that of RuntimeRequestTimeout: 7 minutes.
const DefaultMinAge = 2*requestTimeout + lagMargin

const (
	requestTimeout = 2 * time.Minute
	lagMargin      = 3 * time.Minute  // CRI-O holds a timed-out sandbox for two minutes more
	startingMargin = 10 * time.Minute // the time that R4 allows a pod beyond the ADD of its sandbox
)

// WithDefaults returns o with defaults in the place of zero durations, as [New] uses it, and an
// error that names each value out of bounds.
func (o Options) WithDefaults() (Options, error) {
	var errs []error
	set := func(name string, d *time.Duration, byDefault, least, most time.Duration) {
		*d = cmp.Or(*d, byDefault)
		if *d < least || *d > most {
			errs = append(errs, fmt.Errorf("%s is %v; it must be from %v to %v", name, *d, least, most))
		}
	}
	const day = 24 * time.Hour
	set("RuntimeRequestTimeout", &o.RuntimeRequestTimeout, requestTimeout, time.Second, time.Hour)
	set("MinAge", &o.MinAge, o.lag(), time.Second, 30*day)
	startingFor := 2*o.RuntimeRequestTimeout + startingMargin
	set("StartingFor", &o.StartingFor, startingFor, startingFor, 30*day)
	set("SourceTimeout", &o.SourceTimeout, 15*time.Second, time.Millisecond, day)
	set("StartupTimeout", &o.StartupTimeout, 30*time.Second, time.Millisecond, day)
	set("Interval", &o.Interval, 10*time.Minute, time.Second, day)
	if slices.Contains(o.AllowForeign, "") {
		errs = append(errs, errors.New(`AllowForeign has an empty prefix; name a prefix, or "*" for any owner`))
	}
	return o, errors.Join(errs...)
}

// lag returns L, the time that a runtime may take to list a container.
func (o *Options) lag() time.Duration { return 2*o.RuntimeRequestTimeout + lagMargin }
