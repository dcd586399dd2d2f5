// SPDX-License-Identifier: Apache-2.0

// Package gc releases the addresses that host-local holds for containers which
// are no more.
//
// A [Reconciler] works on one network's folder. One pass, [Reconciler.Reconcile],
// goes one way:
//
//	list the reservations → ask the source for the live pods → decide → release
//
// and says in a [Report] what became of every reservation, and why. What is in
// doubt is kept, and the doubt is named: a leak that was kept is found again by
// the next pass, while an address that was released in use means two pods with
// one address.
//
// # Embedding
//
//	store, err := hostlocal.New("", "podnet")
//	...
//	report, err := gc.New(store, source, gc.Options{Logger: log}).AtStartup(ctx)
//	if err != nil {
//		log.Error(err, "Collecting leaked addresses at start-up; going on")
//	}
//
// [Reconciler.AtStartup] is the hook for an agent's start, [Reconciler.Start] goes
// on from there until its context ends, and [Reconciler.Reconcile] is a single
// pass.
//
// The zero Options are the safe ones. A pass never panics, not even when the
// source does, and ends soon after its context.
//
// # What the promise rests on
//
// A live address is never released as long as: (A1) whoever adds or removes
// reservations takes host-local's lock; (A2) every answer of the source names
// the holder of each reservation that is older than Options.MinAge; (A3) it
// names the holder by its container ID, by one of its addresses here, or as
// starting since no later than the reservation was made; (A4) the times of
// reservations and of starting pods are from this node's clock, which may step,
// but not before this process started and unseen by it.
package gc
