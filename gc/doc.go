// SPDX-License-Identifier: Apache-2.0

// Package gc releases the addresses that host-local still reserves for containers
// that no longer exist.
//
// A [Reconciler] works on one data directory of host-local. A pass,
// [Reconciler.Reconcile], has five steps:
//
//	list the reservations of every network → ask the sources for the live pods
//	→ decide → release in the networks that were named → report
//
// The [Report] has a verdict and a reason for every reservation. What is in doubt
// is kept: the next pass finds a leak again, but an address that is released while
// it is in use is given to a second pod.
//
// # Embedding
//
//	store := hostlocal.New("") // "" is /var/lib/cni/networks
//	reconciler, err := gc.New(store, []string{"podnet"}, source, gc.Options{Logger: log})
//	...
//	return reconciler.Start(ctx)
//
// examples/embed/README.md has a program for each kind of agent.
// [Reconciler.AtStartup] is the hook for an agent's start. [Reconciler.Start] runs
// the hook and then a pass every ten minutes until its context ends.
// [Reconciler.Reconcile] is a single pass. The zero Options are safe. A pass never
// panics, not even when the source does, and returns soon after its context ends.
//
// # How long a leak stays
//
// A reservation that no live pod holds is released once it is older than
// Options.MinAge. Its age is that of its file, if the node's clock was surely the same then.
// After a step of the clock or a boot of the node age counts from when the file was first
// seen, by this process or by another one with the same Options.Memory.
//
// A pod that is starting may hold a reservation although no source names its
// container or address yet. Such a pod delays the release until a source that
// would have named the container by then does not. With a container runtime as the
// source, the reservation must then be older than Options.StartingFor. With a source
// that sees CNI ADDs in flight and libcni's cache or a record beside it, there is no delay.
// Package podsource says what sources can declare.
//
// An agent that serves the ADDs itself, and has a record of them, waits for nothing: see
// [NoADDInFlight].
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
//     reservation, T being kubelet's runtimeRequestTimeout. The holder of a file that
//     became empty must be named by that very address, since the file has no owner;
//   - A4: the times of reservations and pods are from this node's clock. A step of
//     the clock while the process runs, or that Options.Memory shows, is noticed unless it is
//     undone before anybody looked. Any other step is assumed not to lie between a pod's
//     start and the time at which it has started, nor in the five minutes after its end,
//     and a record to have been told of every ADD of this boot before it.
//
// The rules R1 to R14 in this module's comments are in gc/README.md, in the chapter
// on safety rules.
package gc
