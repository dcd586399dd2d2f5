// SPDX-License-Identifier: Apache-2.0

// Package cnigc makes a pod source of a CNI GC request, which lists the attachments that
// are still valid.
//
//	valid, err := cnigc.New(stdin, cnigc.Options{})
//	...
//	reconciler, err := gc.New(store, []string{valid.Network()}, valid, gc.Options{})
//
// The list is that of the request's network, and the source speaks only of that network. It
// never lets a reservation of another one be released, whatever networks the reconciler has
// (hazard 74). Reservations are matched by container ID. So a container with one valid
// interface keeps the reservations of all its interfaces, which is stricter than GC requires.
// Owners from old versions of host-local, with a container ID only, match like any other.
//
// The CNI specification allows no ADD in flight during a GC. A pass does not rely on that: a
// reservation that is younger than the minimum age is kept until the next one. The assertion
// gc.NoADDInFlight is for an agent that serves the ADDs and has not begun to. It is not for
// a GC request.
//
// # What it cannot see
//
//   - Any other network (hazard 74).
//   - Containers that were attached after the request. The source is valid for Options.MaxAge,
//     and then returns an error (hazard 62). It is not for a loop.
//   - Whether the list is complete. The sender asserts that, and not every sender can: Multus
//     4.2 does not forward the request that it received. It makes a list from its own cache,
//     without the files that it can't read, and sends that to its first delegate only. So
//     behind Multus the request does not name all holders. Release nothing because of it
//     there: use the runtime and package cnicache instead.
//   - Another runtime's containers in the same network: each runtime names its own
//     (hazard 29).
package cnigc
