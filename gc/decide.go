// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A snapshot is everything a decision may rest on.
type snapshot struct {
	reservations *reservations // of all networks of the data dir
	looks        [][]podsource.Answer
	pods         *livePods
	evidence     evidence
	clock        *clock        // read, not written
	at           reading       // before the sources were asked
	stale        time.Duration // by how much the stalest answer is older than that; forever: it can't be told
	limits       limits
	networks     []string // to release in; all others are only read
	foreign      []podsource.Form
	noADD        bool // the hook's assertion (R5)
}

// limits are the durations of R4 and R5.
type limits struct {
	minAge      time.Duration // as set
	startingFor time.Duration
	lag         time.Duration // L: how long a runtime may take to list a sandbox
}

const (
	always  = time.Duration(math.MinInt64)
	forever = time.Duration(math.MaxInt64)
)

// decide judges every reservation, in order, and says in how long a verdict may
// turn to leaked; zero is never. It is a pure function.
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
	rs := s.reservations.all
	entries = make([]Entry, len(rs))
	o := owners{inUse: make(map[string]*Pod), inConflict: make(map[string]*Pod)}
	for i := range rs {
		o.unreadable = o.unreadable || s.mayBeSibling(&rs[i])
		if claimants := s.pods.claimants(&rs[i]); len(claimants) > 0 {
			entries[i] = s.judgeClaimed(&rs[i], claimants)
			o.note(&entries[i])
		}
	}
	ages := make(map[string]age)
	for i := range rs {
		if entries[i].Reservation == nil {
			entries[i] = s.judgeOwned(&rs[i], &o)
		}
		if entries[i].Reason == Unowned {
			a := s.age(&rs[i])
			if other, ok := ages[rs[i].ContainerID]; !ok || a.least < other.least {
				ages[rs[i].ContainerID] = a
			}
		}
	}
	next = s.pods.nextFinish
	for i := range rs {
		var in time.Duration
		switch entries[i].Reason {
		case Unowned:
			entries[i], in = s.judgeUnowned(&rs[i], ages[rs[i].ContainerID])
		case EmptyOwner:
			entries[i], in = s.judgeUnowned(&rs[i], s.age(&rs[i]))
		case SiblingUnreadable:
			in = s.limits.minAge
		}
		if in > 0 && (next == 0 || in < next) {
			next = in
		}
	}
	return entries, next
}

// An age is how old a container is at least: as old as its youngest reservation.
type age struct {
	least       time.Duration
	byTimestamp bool
}

func (s *snapshot) age(r *hostlocal.Reservation) age {
	least, byTimestamp := s.clock.age(s.at, r)
	if s.stale == forever {
		return age{0, byTimestamp}
	}
	return age{least - s.stale, byTimestamp}
}

// mayBeSibling reports whether r can't be read and may belong to any container:
// its address is claimed, or it is young (hazard 68).
func (s *snapshot) mayBeSibling(r *hostlocal.Reservation) bool {
	return r.Owner == hostlocal.Unreadable && (len(s.pods.claimants(r)) > 0 || s.age(r).least < max(s.limits.minAge, s.limits.lag))
}

// owners is what the claimed reservations tell about others of the same owner.
type owners struct {
	inUse      map[string]*Pod // container IDs that hold an address in use
	inConflict map[string]*Pod // container IDs that hold an address in conflict
	unreadable bool            // an address in use may belong to any container
}

func (o *owners) note(e *Entry) {
	switch {
	case e.Owner != hostlocal.Owned: // nobody's siblings
	case e.Reason == AddressClaimed:
		o.inUse[e.ContainerID] = e.Pod
	case e.Verdict == Conflict:
		o.inConflict[e.ContainerID] = e.Pod
	}
}

// judgeClaimed judges a reservation whose address live pods claim (R3, R10).
func (s *snapshot) judgeClaimed(r *hostlocal.Reservation, claimants []claim) Entry {
	pods := s.pods
	owner := pods.owner(r)
	if rivals := pods.rivals(claimants, owner); len(rivals) > 0 {
		rival := rivals[0]
		if rival == owner {
			rival = rivals[1]
		}
		return pods.entry(r, TwoPods, rival)
	}
	if owner != noPod {
		return pods.entry(r, ContainerLive, owner)
	}
	// A claimant whose container is known, and this is none of its own.
	hasContainer := func(c claim) bool { return len(pods.pods[c.pod].ContainerIDs) > 0 }
	other := slices.IndexFunc(claimants, hasContainer)
	if r.Owner != hostlocal.Owned || other < 0 {
		return pods.entry(r, AddressClaimed, claimants[0].pod)
	}
	inAny := func(c claim) bool { return hasContainer(c) && pods.pods[c.pod].Network == "" }
	inAnother := func(o *hostlocal.Reservation) bool { return o.Network != r.Network && pods.owner(o) != noPod }
	if slices.ContainsFunc(claimants, inAny) && s.reservations.any(r.IP, inAnother) {
		return pods.entry(r, ClaimedInOtherNetwork, claimants[other].pod)
	}
	return pods.entry(r, OtherContainer, claimants[other].pod)
}

// judgeOwned judges a reservation whose address no live pod claims, by its owner
// (R3). Unowned and EmptyOwner are left to judgeUnowned.
func (s *snapshot) judgeOwned(r *hostlocal.Reservation, o *owners) Entry {
	switch r.Owner {
	case hostlocal.Malformed:
		return s.pods.entry(r, OwnerMalformed, noPod)
	case hostlocal.Empty:
		return s.pods.entry(r, EmptyOwner, noPod)
	case hostlocal.Owned:
	default:
		return s.pods.entry(r, OwnerUnreadable, noPod)
	}
	if owner := s.pods.owner(r); owner != noPod {
		return s.pods.entry(r, ContainerLive, owner)
	}
	if pod, ok := o.inUse[r.ContainerID]; ok {
		return Entry{r, pod, SiblingInUse.Verdict(), SiblingInUse}
	}
	if pod, ok := o.inConflict[r.ContainerID]; ok {
		return Entry{r, pod, OwnerInConflict.Verdict(), OwnerInConflict}
	}
	if o.unreadable {
		return s.pods.entry(r, SiblingUnreadable, noPod)
	}
	return s.pods.entry(r, Unowned, noPod)
}

// judgeUnowned judges a reservation whose address and owner no live pod is known
// to hold. It returns in how long the verdict may change; zero is never.
func (s *snapshot) judgeUnowned(r *hostlocal.Reservation, a age) (Entry, time.Duration) {
	pods, seen := s.pods, s.clock.firstSeen(s.at, r)
	if !s.evidence.speaksOf(r.Network) {
		return pods.entry(r, NoSourceForNetwork, noPod), 0
	}
	if s.evidence.foreign(r) && !s.evidence.inEveryLook(seen, seesAddresses) && !s.allowed(r) {
		return pods.entry(r, ForeignOwner, noPod), 0
	}
	if s.stale == forever {
		return pods.entry(r, StaleAnswer, noPod), 0
	}
	lag, named := s.evidence.names(r, seen)
	if need := s.minAge(r, seen); a.least < need && !(s.noADD && named && lag == 0) {
		why := TooYoung
		switch {
		case !a.byTimestamp:
			why = UntrustedTimestamp
		case a.least >= s.limits.minAge:
			why = NotYetListed
		}
		return pods.entry(r, why, noPod), need - a.least
	}
	if pod, why := s.startingPod(r); pod != noPod {
		in := s.claimEnds(r, a, seen, lag, named)
		if in == forever {
			return pods.entry(r, StartingNoEnd, pod), 0
		}
		if in > 0 {
			return pods.entry(r, why, pod), in
		}
	}
	switch {
	case !slices.Contains(s.networks, r.Network):
		return pods.entry(r, NetworkNotNamed, noPod), 0
	case r.Owner == hostlocal.Empty:
		return pods.entry(r, EmptyOwner, noPod), 0
	}
	return pods.entry(r, Unowned, noPod), 0
}

func (s *snapshot) allowed(r *hostlocal.Reservation) bool {
	return slices.ContainsFunc(s.foreign, func(f podsource.Form) bool { return f.Matches(r.ContainerID) })
}

// minAge returns how old r must be (R5): what the caller set, but at least as
// old as it takes until it is named, and L unless this pass can see what no
// source would name by then.
func (s *snapshot) minAge(r *hostlocal.Reservation, seen time.Duration) time.Duration {
	need := s.limits.minAge
	if need < s.limits.lag && !s.seconds(r, seen) {
		need = s.limits.lag
	}
	lag, _ := s.evidence.names(r, always)
	return max(need, lag)
}

// seconds reports whether this pass would have seen an ADD under way, and a
// container whose ADD has ended, in both of its looks (R5).
func (s *snapshot) seconds(r *hostlocal.Reservation, seen time.Duration) bool {
	e := s.evidence
	return len(e) > 1 && e.inEveryLook(seen, seesADDs) && e.inEveryLook(seen, seesAddresses) && e.inEveryLook(seen, cached(r))
}

// startingPod returns a pod that may hold r without naming it yet, or noPod.
func (s *snapshot) startingPod(r *hostlocal.Reservation) (pod int32, why Reason) {
	starting := &s.pods.starting
	switch {
	case starting.unknown != noPod:
		return starting.unknown, PodStartUnknown
	case starting.earliest != noPod && madeSince(r, starting.since):
		return starting.earliest, PodStarting
	}
	return noPod, PodStarting
}

// claimEnds returns in how long a starting pod's claim on r ends (R4): zero is
// that it has ended, forever that no source here can end it.
func (s *snapshot) claimEnds(r *hostlocal.Reservation, a age, seen, lag time.Duration, named bool) time.Duration {
	if named && lag == 0 && len(s.evidence) > 1 && s.evidence.inEveryLook(seen, seesADDs) && a.least >= s.minAge(r, seen) {
		return 0
	}
	ends := forever
	unseen := s.limits.lag - (s.at.mono - seen - s.stale)
	if named {
		ends = min(ends, max(0, unseen, s.limits.startingFor-a.least+1, lag-a.least+1))
	} else if _, later := s.evidence.names(r, always); later { // by an answer from before r was seen
		ends = min(ends, s.limits.lag)
	}
	if s.clock.beforeBoot(r) {
		ends = min(ends, max(0, unseen))
	}
	return ends
}

// wantsSecondLook reports whether something might be released that needs to be
// unowned in two looks (R5). It is asked after the first.
func (s *snapshot) wantsSecondLook() bool {
	if !s.evidence.inEveryLook(always, seesADDs) {
		return false
	}
	for i := range s.reservations.all {
		r := &s.reservations.all[i]
		if r.Owner != hostlocal.Owned && r.Owner != hostlocal.Empty || !slices.Contains(s.networks, r.Network) {
			continue
		}
		if s.age(r).least < s.limits.minAge || s.pods.owner(r) != noPod || len(s.pods.claimants(r)) > 0 {
			continue
		}
		starting, _ := s.startingPod(r)
		lag, named := s.evidence.names(r, s.clock.firstSeen(s.at, r))
		if (starting != noPod || s.limits.minAge < s.limits.lag) && named && lag == 0 {
			return true
		}
	}
	return false
}

// entry returns what a report says of r.
func (l *livePods) entry(r *hostlocal.Reservation, why Reason, pod int32) Entry {
	return Entry{Reservation: r, Pod: l.ref(pod), Verdict: why.Verdict(), Reason: why}
}
