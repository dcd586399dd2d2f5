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

// A snapshot is everything a decision may rest on.
type snapshot struct {
	reservations []hostlocal.Reservation // of all networks of the data dir
	evidence     evidence
	pods         *livePods
	clock        *clock        // read, not written
	at           reading       // before the sources were asked
	stale        time.Duration // by how much the stalest answer is older than that; forever: it can't be told
	opts         *Options
	networks     []string // to release in; all others are only read
	everywhere   bool     // these are all there are, and nobody named them (R14)
	noADD        bool     // the hook's assertion (R5)
}

const (
	always  = time.Duration(math.MinInt64)
	forever = time.Duration(math.MaxInt64)
)

// decide judges every reservation, in order, and says in how long a verdict may
// turn to leaked; forever where none is known to. It is a pure function.
//
// That it never releases what a live pod holds follows from the assumptions A1
// to A4 (see the package comment). What is younger than the minimum age, or than
// the lag of the only source that could name it, is kept (R5). The holder of
// what is older is in the answers (A2), named in one of three ways (A3): by its
// container ID or by one of its addresses, and then the reservation is kept by
// R3, directly or as a sibling, or as a conflict by R10; or as starting since no
// later than the reservation was made, and then it is kept by R4 until a source
// that would have named it by then does not.
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

// An age is how old something is at least.
type age struct {
	least       time.Duration
	byTimestamp bool
}

func (s *snapshot) age(r *hostlocal.Reservation) age {
	least, byTimestamp := s.clock.age(s.at, r)
	return age{least - s.stale, byTimestamp}
}

// mayBeSibling reports whether r can't be read and may belong to any container:
// its address is claimed, or it is young (hazard 68).
func (s *snapshot) mayBeSibling(r *hostlocal.Reservation) bool {
	return r.Owner == hostlocal.Unreadable && (len(s.pods.claimants(r)) > 0 || s.age(r).least < max(s.opts.MinAge, s.opts.lag()))
}

// owners is what the claimed reservations tell about others of the same owner.
type owners struct {
	held       map[string]Entry    // what keeps other reservations of a container, by its ID
	live       map[netip.Addr]bool // claimed addresses of live containers in whatever network
	unreadable bool                // an address in use may belong to any container
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
	// A claimant whose container is known, and this is none of its own.
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

// note takes note of why other reservations of r's owner are kept. That one of
// them is in use comes before a conflict.
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

// judgeUnowned judges a reservation whose address and owner no live pod is known
// to hold. It returns in how long the verdict may change to leaked.
func (s *snapshot) judgeUnowned(r *hostlocal.Reservation, a age) (Entry, time.Duration) {
	seen := s.clock.firstSeen(s.at, fileOf(r))
	switch {
	case !s.evidence.inEveryLook(always, speaksOf(r)):
		return entry(r, NoSourceForNetwork, nil), forever
	case !s.evidence.inEveryLook(always, mayName(r)):
		return entry(r, CacheIsNewer, nil), forever
	case (s.evidence.foreign(r) || s.everywhere && r.Owner == hostlocal.Owned) && !s.evidence.inEveryLook(seen, seesAddresses) && !s.allowed(r):
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

// minAge returns how old r must be (R5): what the caller set, but at least as
// old as it takes until it is named, and L unless this pass would have seen, in
// both of its looks, an ADD under way and a container whose ADD has ended.
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

// startingPod returns a pod that may hold r without naming it yet, or nil.
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

// claimEnds returns in how long the claim of a starting pod or of an unproven entry
// on r ends (R4): zero or less is that it has ended, forever that no source here can end it.
func (s *snapshot) claimEnds(r *hostlocal.Reservation, why Reason, a age, seen time.Duration) time.Duration {
	unseen := s.opts.lag() - (s.at.mono - seen - s.stale)
	byName := func(lag time.Duration) time.Duration {
		return max(unseen, s.opts.StartingFor-a.least+1, lag-a.least+1)
	}
	lag := s.evidence.lag(r, seen)
	ends := forever
	switch {
	case why == EntryUnproven: // only what is no cache itself, and would name r's container, can end it
		if lag = s.evidence.least(seen, lagOfRuntime(r)); lag < forever {
			ends = byName(lag)
		}
		return ends
	case lag == 0 && len(s.evidence) > 1 && s.evidence.inEveryLook(seen, seesADDs) && a.least >= s.minAge(r, seen):
		return 0
	case lag < forever:
		ends = byName(lag)
	case s.evidence.lag(r, always) < forever: // by an answer from before r was seen
		ends = s.opts.lag()
	}
	if s.clock.beforeBoot(r) {
		return unseen // no other end comes before
	}
	return ends
}

// wantsSecondLook reports whether something might be released that needs to be
// unowned in two looks (R5). It is asked after the first.
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

// entry returns what a report says of r.
func entry(r *hostlocal.Reservation, why Reason, pod *livePod) Entry {
	e := Entry{Reservation: r, Verdict: why.Verdict(), Reason: why}
	if pod != nil {
		e.Pod = &pod.ref
	}
	return e
}
