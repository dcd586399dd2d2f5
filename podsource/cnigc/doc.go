// SPDX-License-Identifier: Apache-2.0

// Package cnigc makes a pod source of a CNI GC request: the attachments that the
// runtime calls still valid.
//
//	valid, err := cnigc.New(stdin, cnigc.Options{})
//	...
//	reconciler, err := gc.New(store, []string{valid.Network()}, valid, gc.Options{})
//
// The list is that of the network that the request names, and the source speaks
// of that network alone: in another one nothing is released on its word, whatever
// networks the reconciler has (hazard 74). As reservations are matched by
// container ID, a container that is valid by one of its interfaces keeps what all
// of them hold, which is stricter than GC demands. Owners that old versions of
// host-local wrote, of a container ID alone, match like any other.
//
// The CNI specification lets no ADD be in flight during a GC. A pass does not rely
// on that: what is younger than the minimum age waits for the next one. The hook's
// assertion, gc.NoADDInFlight, is for who serves the ADDs and has not begun to. It
// is not for answering a request.
//
// # What it cannot see
//
//   - Any other network (hazard 74).
//   - What was attached after the request: it counts for Options.MaxAge, and then is
//     an error (hazard 62). It does not belong into a loop.
//   - Whether the list is whole. Who sends a request asserts that, and not
//     everybody can: Multus 4.2 does not pass on what it was sent. It makes a list
//     of its own cache, of which it leaves out files that it can't read, and sends
//     that to its first delegate only. So behind Multus the request does not name
//     all holders. Don't let anything go by it there: ask the runtime and package
//     cnicache instead.
//   - Another runtime's containers in the same network: each runtime names its own
//     (hazard 29).
package cnigc
