// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A snapshot is the whole input of a decision.
type snapshot struct {
	reservations []candidate     // of all networks of the data dir
	evidence     [][]declaration // look by look; one counts if the same source makes it in every look
	pods         *livePods
	listed       int           // pods and entries of the answers
	clock        *clock        // read, not written
	at           reading       // before the sources were asked
	stale        time.Duration // how much older than that the oldest answer is; forever or more if unknown
	opts         *Options
	dirs         []string // the networks that have a directory
	networks     []string // to release in; all others are only read
	allNetworks  bool     // networks are all on the disk, not named by the caller (R14)
	noADD        bool     // the hook's assertion (R5)
}

const (
	always  = time.Duration(math.MinInt64 / 2) // half, so that no sum overflows
	forever = time.Duration(math.MaxInt64 / 2)
)

// A decision is what a pass decides about one reservation.
type decision struct {
	reason Reason
	again  bool     // a leak that needs two looks
	pod    *livePod // that the reason is about, or nil
}

// decide judges every reservation, in order, and returns how long it takes until the first of those
// that are kept may be decided to be a leak: forever if not by time alone. After the first look it
// returns nil if one of them would be released and a source sees ADDs: that takes a second look (R5).
// It is a pure function.
//
// It never releases the address of a live pod, given the assumptions A1 to A4 (see
// the package comment). A reservation is kept if it is younger than the minimum age,
// or than the lag of the only source that could name its holder (R5). The holder of
// an older one is in the answers (A2), in one of three ways (A3). If it is named by
// its container ID or by one of its addresses, R3 keeps the reservation, directly or
// as a sibling, or R10 keeps it as a conflict. If it is listed as starting since no
// later than the reservation was made, R4 keeps the reservation until a source that
// would have named the holder by then does not.
func decide(s *snapshot) (decisions []decision, in time.Duration) {
	decisions, in = make([]decision, len(s.reservations)), forever
	o := s.newOwners()
	for i := range s.reservations {
		r := &s.reservations[i]
		if claimants := s.pods.claimants(r); len(claimants) > 0 {
			decisions[i] = s.judgeClaimed(r, claimants, o)
			o.note(r, decisions[i])
		}
	}
	for i := range s.reservations {
		if decisions[i].reason != 0 {
			continue
		}
		d, until := s.judgeUnclaimed(&s.reservations[i], o)
		if d.again && len(s.evidence) < 2 && slices.ContainsFunc(s.evidence[0], seesADDs) {
			return nil, 0 // whatever the network: a sibling's age may rest on the ADDs that are seen
		}
		decisions[i], in = d, min(in, until)
	}
	return decisions, in
}

// age returns a lower bound of r's age, and whether r's timestamp is trusted: if not, the age is the
// time since r was first seen. A timestamp that is doubted only for the boot is trusted if every ADD
// in flight is seen, or the hook's caller asserts that there is none, and a source that names
// containers at once knows all others: nothing of this boot can hide behind it (R5).
func (s *snapshot) age(r *candidate, q silence) (least time.Duration, byTimestamp bool) {
	byTimestamp = s.clock.trusted(s.at, r.ReservedAt) ||
		(q.has(waived) || q.has(adds|knows)) && s.clock.sinceSteps(s.at, r.ReservedAt)
	if least = s.at.mono - r.seen; byTimestamp {
		least = max(least, s.clock.since(s.at, r.ReservedAt))
	}
	return least - s.stale, byTimestamp
}

// owners is what reservations say about others of the same owner, or of the same address.
type owners struct {
	held       map[string]decision      // by container ID: why its other reservations are kept
	youngest   map[string]time.Duration // by container ID: it is as young as its youngest reservation
	live       map[netip.Addr]bool      // addresses that a live container holds in some network
	unreadable bool                     // some reservation may be a sibling of any
}

func (s *snapshot) newOwners() *owners {
	unowned := max(0, len(s.reservations)-len(s.pods.byContainer)) // or a few more or less
	o := &owners{held: make(map[string]decision), youngest: make(map[string]time.Duration, unowned), live: make(map[netip.Addr]bool)}
	for i := range s.reservations {
		r := &s.reservations[i]
		switch {
		case s.pods.owner(r) != nil:
			if s.pods.claims[r.IP] != nil { // no other is looked up
				o.live[r.IP] = true
			}
		case r.Owner == hostlocal.Owned:
			least, _ := s.age(r, s.about(r))
			if other, ok := o.youngest[r.ContainerID]; !ok || least < other {
				o.youngest[r.ContainerID] = least
			}
		case r.Owner == hostlocal.Unreadable: // it may be a sibling of any while its address is claimed or it is young (hazard 68)
			least, _ := s.age(r, 0)
			o.unreadable = o.unreadable || least < max(s.opts.MinAge, s.opts.lag()) || len(s.pods.claimants(r)) > 0
		}
	}
	return o
}

// judgeClaimed judges a reservation whose address live pods claim (R3, R10).
func (s *snapshot) judgeClaimed(r *candidate, claimants []*livePod, o *owners) decision {
	owner := s.pods.owner(r)
	if owner != nil {
		claimants = slices.Insert(claimants, 0, owner)
	}
	if conflicting := conflicting(claimants); len(conflicting) > 0 {
		other := slices.IndexFunc(conflicting, func(p *livePod) bool { return owner != nil && distinct(p, owner) })
		return kept(TwoPods, conflicting[max(0, other)])
	}
	if owner != nil { // a sandbox that is not ready is named only if nothing runs with its address
		running := slices.IndexFunc(claimants, func(p *livePod) bool { return !p.NotRunning })
		return kept(ContainerLive, claimants[max(0, running)])
	}
	// A claimant with a known container. r's own container is ruled out above.
	hasContainer := func(p *livePod) bool { return len(p.ContainerIDs) > 0 }
	other := slices.IndexFunc(claimants, hasContainer)
	if r.Owner != hostlocal.Owned || other < 0 {
		return kept(AddressClaimed, claimants[0])
	}
	inAny := func(p *livePod) bool { return hasContainer(p) && p.Network == "" }
	if slices.ContainsFunc(claimants, inAny) && o.live[r.IP] {
		return kept(ClaimedInOtherNetwork, claimants[other])
	}
	return kept(OtherContainer, claimants[other])
}

// note records why other reservations of r's owner are kept, if that is not live itself. SiblingInUse
// takes precedence over a conflict.
func (o *owners) note(r *candidate, d decision) {
	_, held := o.held[r.ContainerID]
	switch {
	case r.Owner != hostlocal.Owned:
	case d.reason == AddressClaimed:
		o.held[r.ContainerID] = kept(SiblingInUse, d.pod)
	case d.reason != ContainerLive && !held:
		o.held[r.ContainerID] = kept(OwnerInConflict, d.pod)
	}
}

// kept is a decision for a reason that is about a pod, or about none.
func kept(why Reason, pod *livePod) decision { return decision{reason: why, pod: pod} }

// judgeUnclaimed judges a reservation whose address no live pod claims: by its owner (R3), or else by
// what it means that nobody names it. It returns the time until it may be decided to be a leak.
func (s *snapshot) judgeUnclaimed(r *candidate, o *owners) (d decision, in time.Duration) {
	owner, owned := s.pods.owner(r), r.Owner == hostlocal.Owned
	switch held, ok := o.held[r.ContainerID]; {
	case r.Owner == hostlocal.Malformed:
		return kept(OwnerMalformed, nil), forever
	case !owned && r.Owner != hostlocal.Empty:
		return kept(OwnerUnreadable, nil), forever
	case owner != nil:
		return kept(ContainerLive, owner), forever
	case ok:
		return held, forever
	case owned && r.ContainerID == s.opts.OwnADD.ContainerID && !s.isOwn(r):
		return kept(ContainerLive, nil), forever // the caller executes an ADD for it, which the sources leave out
	case owned && o.unreadable:
		return kept(SiblingUnreadable, nil), s.opts.MinAge
	}
	q, named := s.about(r), slices.Contains(s.networks, r.Network)
	if len(s.evidence) < 2 && !named {
		q &^= adds // one look shows no ADD between two plugins, and no second one is taken for this network
	}
	least, byTimestamp := s.age(r, q)
	if owned {
		least = min(least, o.youngest[r.ContainerID])
	}
	d, in = s.judgeSilence(r, q, least, byTimestamp)
	switch {
	case leaked(d.reason):
		d.again = !q.has(waived)
	case q.has(doubt) && named:
		in = 0 // a cache may pass its check soon (hazard 108)
	}
	return d, in
}

func seesADDs(d declaration) bool { return len(d.SeesADDs) > 0 }

// leaked reports whether a reservation was decided to be a leak that may be released.
func leaked(why Reason) bool { return why == Unowned || why == EmptyOwner }

// judgeSilence judges a reservation whose owner and address no live pod is known to have.
func (s *snapshot) judgeSilence(r *candidate, q silence, least time.Duration, byTimestamp bool) (d decision, in time.Duration) {
	switch {
	case !q.has(speaksOf):
		return kept(NoSourceForNetwork, nil), forever
	case !q.has(mayName):
		return kept(NotRecorded, nil), forever
	case s.foreign(r, q):
		return kept(ForeignOwner, nil), forever
	case s.stale >= forever:
		return kept(StaleAnswer, nil), forever
	}
	need := s.opts.MinAge
	if !q.has(adds | addresses | cached) { // then a setting below L does not count (R5)
		need = max(need, s.opts.lag())
	}
	if least < need && !q.has(waived) && !q.has(own) {
		why := TooYoung
		switch {
		case !byTimestamp:
			why = UntrustedTimestamp
		case least >= s.opts.MinAge:
			why = NotYetListed
		}
		return kept(why, nil), need - least
	}
	if d, in := s.judgeStarting(r, q, least); in > 0 {
		return d, in
	}
	switch {
	case !slices.Contains(s.networks, r.Network):
		return kept(NetworkNotNamed, nil), forever
	case r.Owner == hostlocal.Empty:
		return kept(EmptyOwner, nil), forever
	}
	return kept(Unowned, nil), forever
}

// judgeStarting keeps r for a starting pod, or an entry that is not proven, that may hold it. It returns
// the time until that claim ends (R4): zero or less if there is none, forever if no source here can end it.
func (s *snapshot) judgeStarting(r *candidate, q silence, least time.Duration) (d decision, in time.Duration) {
	byName := s.opts.StartingFor - least + 1
	if pod := s.pods.unproven[r.ContainerID]; pod != nil {
		switch { // only a source that is no cache ends it, if it would name the container
		case q.has(own) && s.clock.beforeBoot(pod.StartedAt):
			byName = 0
		case !q.has(byNoCache):
			byName = forever
		}
		return kept(EntryUnproven, pod), byName
	}
	pod, why := s.pods.starting, PodStarting
	if pod == nil || !s.clock.madeSince(r.Reservation, s.pods.start) {
		return decision{}, 0
	}
	if s.pods.start.IsZero() {
		why = PodStartUnknown
	}
	switch {
	case q.has(waived), q.has(atOnce | adds): // the age is at least MinAge
		return decision{}, 0
	case s.clock.beforeBoot(r.ReservedAt):
		return kept(why, pod), s.opts.lag() - least + 1
	case q.has(namesNow):
		return kept(why, pod), byName
	case q.has(names): // but only by an answer from before r was first seen
		return kept(why, pod), s.opts.lag()
	}
	return kept(StartingNoEnd, pod), forever
}
