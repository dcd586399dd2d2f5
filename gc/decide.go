// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A snapshot is the whole input of a decision.
type snapshot struct {
	reservations []hostlocal.Reservation // of all networks of the data dir
	evidence     evidence
	pods         *livePods
	clock        *clock        // read, not written
	at           reading       // before the sources were asked
	stale        time.Duration // how much older than that the oldest answer is; forever if unknown
	opts         *Options
	networks     []string // to release in; all others are only read
	allNetworks  bool     // networks are all on the disk, not named by the caller (R14)
	noADD        bool     // the hook's assertion (R5)
}

const (
	always  = time.Duration(math.MinInt64)
	forever = time.Duration(math.MaxInt64)
)

// decide judges every reservation, in order. It also returns the time until a
// verdict may change to leaked, or forever. It is a pure function.
//
// It never releases the address of a live pod, given the assumptions A1 to A4 (see
// the package comment). A reservation is kept if it is younger than the minimum age,
// or than the lag of the only source that could name its holder (R5). The holder of
// an older one is in the answers (A2), in one of three ways (A3). If it is named by
// its container ID or by one of its addresses, R3 keeps the reservation, directly or
// as a sibling, or R10 keeps it as a conflict. If it is listed as starting since no
// later than the reservation was made, R4 keeps the reservation until a source that
// would have named the holder by then does not.
func decide(s *snapshot) (entries []Entry, next time.Duration) {
	rs := s.reservations
	entries = make([]Entry, len(rs))
	o := owners{held: make(map[string]Entry), live: make(map[netip.Addr]bool)}
	for i := range rs {
		o.unreadable = o.unreadable || s.mayBeSibling(&rs[i])
		if s.pods.claims[rs[i].IP] != nil && s.pods.owner(&rs[i]) != nil {
			o.live[rs[i].IP] = true
		}
	}
	for i := range rs {
		if claimants := s.pods.claimants(&rs[i]); len(claimants) > 0 {
			entries[i] = s.judgeClaimed(&rs[i], claimants, &o)
		}
	}
	youngest := make(map[string]age) // by container: it is as young as its youngest reservation
	for i := range rs {
		if entries[i].Reservation == nil {
			entries[i] = s.judgeOwned(&rs[i], &o)
		}
		if entries[i].Reason == Unowned {
			a := s.age(&rs[i])
			if other, ok := youngest[rs[i].ContainerID]; !ok || a.least < other.least {
				youngest[rs[i].ContainerID] = a
			}
		}
	}
	next = s.pods.nextFinish
	for i := range rs {
		in := forever
		switch entries[i].Reason {
		case Unowned:
			entries[i], in = s.judgeUnowned(&rs[i], youngest[rs[i].ContainerID])
		case EmptyOwner:
			entries[i], in = s.judgeUnowned(&rs[i], s.age(&rs[i]))
		case SiblingUnreadable:
			in = s.opts.MinAge
		}
		next = min(next, in)
	}
	return entries, next
}

// An age is a lower bound of how old something is.
type age struct {
	least       time.Duration
	byTimestamp bool
}

func (s *snapshot) age(r *hostlocal.Reservation) age {
	least, byTimestamp := s.clock.age(s.at, r)
	return age{least - s.stale, byTimestamp}
}

// mayBeSibling reports whether r may be a sibling of any reservation: its owner can't
// be read, and its address is claimed or it is young (hazard 68).
func (s *snapshot) mayBeSibling(r *hostlocal.Reservation) bool {
	return r.Owner == hostlocal.Unreadable && (len(s.pods.claimants(r)) > 0 || s.age(r).least < max(s.opts.MinAge, s.opts.lag()))
}

// owners is what claimed reservations say about others of the same owner.
type owners struct {
	held       map[string]Entry    // by container ID: why its other reservations are kept
	live       map[netip.Addr]bool // claimed addresses that a live container holds in some network
	unreadable bool                // some reservation may be a sibling of any
}

// judgeClaimed judges a reservation whose address live pods claim (R3, R10).
func (s *snapshot) judgeClaimed(r *hostlocal.Reservation, claimants []*livePod, o *owners) Entry {
	owner := s.pods.owner(r)
	if owner != nil {
		claimants = slices.Insert(claimants, 0, owner)
	}
	if conflicting := conflicting(claimants); len(conflicting) > 0 {
		other := slices.IndexFunc(conflicting, func(p *livePod) bool { return owner != nil && distinct(p, owner) })
		claimant := conflicting[max(0, other)]
		o.note(r, OwnerInConflict, claimant)
		return entry(r, TwoPods, claimant)
	}
	if owner != nil {
		return entry(r, ContainerLive, owner)
	}
	// A claimant with a known container. r's own container is ruled out above.
	hasContainer := func(p *livePod) bool { return len(p.ContainerIDs) > 0 }
	other := slices.IndexFunc(claimants, hasContainer)
	if r.Owner != hostlocal.Owned || other < 0 {
		o.note(r, SiblingInUse, claimants[0])
		return entry(r, AddressClaimed, claimants[0])
	}
	o.note(r, OwnerInConflict, claimants[other])
	inAny := func(p *livePod) bool { return hasContainer(p) && p.Network == "" }
	if slices.ContainsFunc(claimants, inAny) && o.live[r.IP] {
		return entry(r, ClaimedInOtherNetwork, claimants[other])
	}
	return entry(r, OtherContainer, claimants[other])
}

// note records why other reservations of r's owner are kept. SiblingInUse takes
// precedence over a conflict.
func (o *owners) note(r *hostlocal.Reservation, why Reason, pod *livePod) {
	if _, ok := o.held[r.ContainerID]; !ok || why == SiblingInUse {
		o.held[r.ContainerID] = entry(r, why, pod)
	}
}

// judgeOwned judges a reservation whose address no live pod claims, by its owner
// (R3). Unowned and EmptyOwner are left to judgeUnowned.
func (s *snapshot) judgeOwned(r *hostlocal.Reservation, o *owners) Entry {
	switch r.Owner {
	case hostlocal.Malformed:
		return entry(r, OwnerMalformed, nil)
	case hostlocal.Empty:
		return entry(r, EmptyOwner, nil)
	case hostlocal.Owned:
	default:
		return entry(r, OwnerUnreadable, nil)
	}
	if owner := s.pods.owner(r); owner != nil {
		return entry(r, ContainerLive, owner)
	}
	if other, ok := o.held[r.ContainerID]; ok {
		other.Reservation = r
		return other
	}
	if o.unreadable {
		return entry(r, SiblingUnreadable, nil)
	}
	return entry(r, Unowned, nil)
}

// judgeUnowned judges a reservation whose owner and address no live pod is known to
// have. It also returns the time until the verdict may change to leaked.
func (s *snapshot) judgeUnowned(r *hostlocal.Reservation, a age) (Entry, time.Duration) {
	seen := s.clock.firstSeen(s.at, fileOf(r))
	switch {
	case !s.evidence.inEveryLook(always, speaksOf(r)):
		return entry(r, NoSourceForNetwork, nil), forever
	case !s.evidence.inEveryLook(always, mayName(r)):
		return entry(r, CacheIsNewer, nil), forever
	case (s.evidence.foreign(r) || s.allNetworks && r.Owner == hostlocal.Owned) && !s.evidence.inEveryLook(seen, seesAddresses) && !s.allowed(r):
		return entry(r, ForeignOwner, nil), forever
	case s.stale == forever:
		return entry(r, StaleAnswer, nil), forever
	}
	if need := s.minAge(r, seen); a.least < need && !(s.noADD && s.evidence.lag(r, seen) == 0) {
		why := TooYoung
		switch {
		case !a.byTimestamp:
			why = UntrustedTimestamp
		case a.least >= s.opts.MinAge:
			why = NotYetListed
		}
		return entry(r, why, nil), need - a.least
	}
	if pod, why := s.startingPod(r); pod != nil {
		if in := s.claimEnds(r, why, a, seen); in > 0 {
			if in == forever && why != EntryUnproven {
				why = StartingNoEnd
			}
			return entry(r, why, pod), in
		}
	}
	switch {
	case !slices.Contains(s.networks, r.Network):
		return entry(r, NetworkNotNamed, nil), forever
	case r.Owner == hostlocal.Empty:
		return entry(r, EmptyOwner, nil), forever
	}
	return entry(r, Unowned, nil), forever
}

func (s *snapshot) allowed(r *hostlocal.Reservation) bool {
	return slices.ContainsFunc(s.opts.ReleaseForms, func(f podsource.Form) bool { return f.Matches(r.ContainerID) })
}

// minAge returns how old r must be (R5): MinAge, but at least the time after which
// some source names r's container, and L unless both looks of this pass would have
// seen an ADD in flight and a container whose ADD has ended.
func (s *snapshot) minAge(r *hostlocal.Reservation, seen time.Duration) time.Duration {
	e, need := s.evidence, s.opts.MinAge
	if len(e) < 2 || !e.inEveryLook(seen, seesADDs) || !e.inEveryLook(seen, seesAddresses) || !e.inEveryLook(seen, cached(r)) {
		need = max(need, s.opts.lag())
	}
	if lag := e.lag(r, always); lag < forever {
		need = max(need, lag)
	}
	return need
}

// startingPod returns a starting pod, or an unproven entry, that may hold r, or nil.
func (s *snapshot) startingPod(r *hostlocal.Reservation) (pod *livePod, why Reason) {
	if pod = s.pods.unproven[r.ContainerID]; pod != nil {
		return pod, EntryUnproven
	}
	if pod = s.pods.startUnknown; pod != nil {
		return pod, PodStartUnknown
	}
	if pod = s.pods.startEarliest; pod != nil && madeSince(r, pod.StartedAt) {
		return pod, PodStarting
	}
	return nil, PodStarting
}

// claimEnds returns the time until the claim of a starting pod or of an unproven entry
// on r ends (R4): zero or less if it has ended, forever if no source here can end it.
func (s *snapshot) claimEnds(r *hostlocal.Reservation, why Reason, a age, seen time.Duration) time.Duration {
	unseen := s.opts.lag() - (s.at.mono - seen - s.stale)
	byName := func(lag time.Duration) time.Duration {
		return max(unseen, s.opts.StartingFor-a.least+1, lag-a.least+1)
	}
	lag := s.evidence.lag(r, seen)
	ends := forever
	switch {
	case why == EntryUnproven: // only a source that is no cache can end it, if it would name r's container
		if lag = s.evidence.least(seen, lagOfRuntime(r)); lag < forever {
			ends = byName(lag)
		}
		return ends
	case lag == 0 && len(s.evidence) > 1 && s.evidence.inEveryLook(seen, seesADDs) && a.least >= s.minAge(r, seen):
		return 0
	case lag < forever:
		ends = byName(lag)
	case s.evidence.lag(r, always) < forever: // but only by an answer from before r was seen
		ends = s.opts.lag()
	}
	if s.clock.beforeBoot(r) {
		return unseen // no other end is earlier
	}
	return ends
}

// wantsSecondLook reports, after the first look, whether a reservation might be
// released that must be unowned in two (R5).
func (s *snapshot) wantsSecondLook() bool {
	if !s.evidence.inEveryLook(always, seesADDs) {
		return false
	}
	for i := range s.reservations {
		r := &s.reservations[i]
		if !slices.Contains(s.networks, r.Network) || r.Owner != hostlocal.Owned && r.Owner != hostlocal.Empty {
			continue
		}
		starting, _ := s.startingPod(r)
		needsTwo := (starting != nil || s.opts.MinAge < s.opts.lag()) && s.age(r).least >= s.opts.MinAge
		if needsTwo && s.pods.owner(r) == nil && len(s.pods.claimants(r)) == 0 && s.evidence.lag(r, s.clock.firstSeen(s.at, fileOf(r))) == 0 {
			return true
		}
	}
	return false
}

// entry returns the entry of r in the report.
func entry(r *hostlocal.Reservation, why Reason, pod *livePod) Entry {
	e := Entry{Reservation: r, Verdict: why.Verdict(), Reason: why}
	if pod != nil {
		e.Pod = &pod.ref
	}
	return e
}
