// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A world is all that a decision may rest on.
type world struct {
	here     network   // whose reservations are judged
	siblings []network // other networks of the same data dir, which only add reasons to keep (R3)
	view     *view
	clock    *clock // read, not written
	at       moment // before the source was asked
	minAge   time.Duration
}

// problems returns the errors about single reservations, in order.
func (w *world) problems() (errs []error) {
	for _, n := range append([]network{w.here}, w.siblings...) {
		for i := range n.rs {
			if err := n.failures[i]; err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// A network is one network's reservations, sorted by address, and the live
// addresses laid beside them.
type network struct {
	rs       []hostlocal.Reservation
	claims   claims
	failures map[int]error // what kept a reservation from being read, and later from being released
}

func (n *network) fail(i int, err error) {
	if n.failures == nil {
		n.failures = make(map[int]error)
	}
	n.failures[i] = err
}

// A judgement is the verdict on one reservation, by its reason, and the pod that
// the reason is about, or nobody.
type judgement struct {
	reason Reason
	pod    int32
}

// decide judges every reservation of w.here, and puts the judgements into
// judged, which must be as long and is not read. It is a pure function.
//
// That it never lets go of what a live pod holds follows from the assumptions
// A1 to A4 (see the package comment). What is younger than the minimum age is
// kept (R5). The holder of what is older is in the source's answer (A2), named
// in one of three ways (A3): by its container ID or by one of its addresses, and
// then the reservation is kept by R3, directly or as a sibling, or as a conflict
// by R10; or as starting since no later than the reservation was made, and then
// it is kept by R4.
//
// Reservations that are claimed by address may be Unread. Then their owners'
// other reservations are judged as if they had no sibling: before something
// Leaked that has an owner is released, those must be read too, and decide be
// asked again.
func decide(w world, judged []judgement) {
	kin := judgeClaimed(w, judged)
	for i := range w.here.rs {
		if w.here.claims.first[i] == nobody {
			judged[i] = judgeUnclaimed(w, kin, &w.here.rs[i])
		}
	}
}

// A kinship is what is known of containers by those of their reservations that
// a live pod claims by address.
type kinship struct {
	inUse    map[string]int32 // containers that hold an address in use, and its pod
	disputed map[string]int32 // containers that hold an address in conflict
	// Set where such a container is not known, and so may be any: an error, or
	// a change meanwhile, came between.
	unreadable, changed bool
}

// judgeClaimed judges the reservations whose addresses live pods claim, here and
// in the sibling networks. Only those of w.here get into judged.
func judgeClaimed(w world, judged []judgement) kinship {
	kin := kinship{inUse: make(map[string]int32), disputed: make(map[string]int32)}
	for i := range w.here.rs {
		if w.here.claims.first[i] != nobody {
			judged[i] = kin.note(w.view, &w.here, i)
		}
	}
	for n := range w.siblings {
		for i := range w.siblings[n].rs {
			if w.siblings[n].claims.first[i] != nobody {
				kin.note(w.view, &w.siblings[n], i)
			}
		}
	}
	return kin
}

// note judges one claimed reservation and remembers what that means for the
// others of its container.
func (k *kinship) note(v *view, n *network, i int) judgement {
	r, claimant := &n.rs[i], n.claims.first[i]
	named := v.named(&n.claims, i)
	owner := v.owner(r)
	switch r.Owner {
	case hostlocal.Vanished:
		k.changed = k.changed || !named
		return judgement{FileGone, claimant}
	case hostlocal.Replaced:
		k.changed = k.changed || !named
		return judgement{FileChanged, claimant}
	case hostlocal.Unreadable:
		k.unreadable = true
	}
	holder := claimant
	if owner != nobody {
		holder = owner
	}
	if rival := v.rival(&n.claims, i, holder); rival != nobody {
		if r.Owner == hostlocal.Owned {
			k.disputed[r.ContainerID] = rival
		}
		return judgement{TwoPods, rival}
	}
	switch {
	case owner != nobody:
		return judgement{ContainerLive, owner}
	case r.Owner != hostlocal.Owned:
		return judgement{AddressClaimed, claimant}
	case named:
		k.disputed[r.ContainerID] = claimant
		return judgement{OtherContainer, claimant}
	}
	k.inUse[r.ContainerID] = claimant
	return judgement{AddressClaimed, claimant}
}

// judgeUnclaimed judges a reservation whose address no live pod claims.
func judgeUnclaimed(w world, kin kinship, r *hostlocal.Reservation) judgement {
	leak := Unowned
	switch r.Owner {
	case hostlocal.Vanished:
		return judgement{FileGone, nobody}
	case hostlocal.Replaced:
		return judgement{FileChanged, nobody}
	case hostlocal.Malformed:
		return judgement{OwnerMalformed, nobody}
	case hostlocal.Empty:
		leak = EmptyOwner
	case hostlocal.Owned:
		if owner := w.view.owner(r); owner != nobody {
			return judgement{ContainerLive, owner}
		}
		if pod, ok := kin.inUse[r.ContainerID]; ok {
			return judgement{SiblingInUse, pod}
		}
		if pod, ok := kin.disputed[r.ContainerID]; ok {
			return judgement{OwnerInConflict, pod}
		}
		if kin.unreadable {
			return judgement{SiblingUnreadable, nobody}
		}
		if kin.changed {
			return judgement{SiblingChanged, nobody}
		}
	default: // Unreadable, or never read
		return judgement{OwnerUnreadable, nobody}
	}
	if age, sure := w.clock.age(w.at, r); age < w.minAge {
		if sure {
			return judgement{TooYoung, nobody}
		}
		return judgement{TimeInDoubt, nobody}
	}
	for _, s := range w.view.starting {
		if s.since.IsZero() {
			return judgement{PodStartUnknown, s.pod}
		}
		if !r.ReservedAt.Before(s.since.Add(-grain)) {
			return judgement{PodStarting, s.pod}
		}
	}
	return judgement{leak, nobody}
}
