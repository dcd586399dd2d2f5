// SPDX-License-Identifier: Apache-2.0

// Package gc releases the addresses that host-local holds for containers which
// do not exist any more.
//
// A [Reconciler] works on a data directory of host-local. One pass,
// [Reconciler.Reconcile], goes one way:
//
//	list the reservations of every network → ask the sources for the live pods
//	→ decide → release in the networks that were named → report
//
// Its [Report] says what became of every reservation, and why. What is in doubt
// is kept, and the doubt is named: a leak that was kept is found again by the
// next pass, while an address that was released in use means two pods with one
// address.
//
// # Embedding
//
//	store := hostlocal.New("") // "" is /var/lib/cni/networks
//	reconciler, err := gc.New(store, []string{"podnet"}, source, gc.Options{Logger: log})
//	...
//	report, err := reconciler.AtStartup(ctx)
//	if err != nil {
//		log.Error(err, "Releasing leaked addresses at start-up; going on")
//	}
//
// [Reconciler.AtStartup] is the hook for an agent's start, [Reconciler.Start] is
// the hook and then a pass every ten minutes until its context ends, and
// [Reconciler.Reconcile] is a single pass. The zero Options are the safe ones. A
// pass never panics, not even when the source does, and ends soon after its
// context.
//
// # How long a leak stays
//
// A reservation that no live pod holds is released once it is older than
// Options.MinAge. While some pod is starting, and may hold it without naming it
// yet, it stays until a source that would have named its container by then does
// not. With a container runtime as a source that is when it is older than
// Options.StartingFor, and this process has seen it unowned for 2 T and 3 minutes.
// With sources that see CNI ADDs in flight and libcni's cache that pod delays
// nothing. See the package podsource for what sources can declare.
//
// # What the promise rests on
//
// A live address is never released as long as:
//
//   - A1: whoever adds or removes reservations takes host-local's lock (its
//     ADD and DEL do since 0.7.0);
//   - A2: the answers together name the holder of each reservation that is older
//     than MinAge, or than the lag of the only source that could name it;
//   - A3: they name it by its container ID, by one of its addresses, or as
//     starting since no later than the reservation was made, and a live container
//     is listed by its runtime no later than 2 T and 3 minutes after its
//     reservation, T being kubelet's runtimeRequestTimeout;
//   - A4: the times of reservations and pods are from this node's clock. A step of
//     it while the process runs is seen; one before is assumed not to fall
//     between a reservation and the moment its pod stops to be starting.
//
// The rule numbers in this module, R1 to R14, are those of the chapter on safety
// rules in gc/README.md.
package gc
