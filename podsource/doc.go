// SPDX-License-Identifier: Apache-2.0

// Package podsource says what a source of live pods is, and combines sources.
//
// A [Source] answers one question: which pods are live on this node? It answers
// with all that it can know of, or with an error. Sources differ in what that is:
//
//   - An API server or kubelet knows pods that are still starting, and the
//     addresses of those that run, but not a pod that was deleted by force and
//     whose sandbox still runs.
//   - A container runtime knows every sandbox by the container ID that owns its
//     reservations, but not a sandbox that is being set up.
//   - The kernel knows every address in a network namespace, but not whose it is.
//   - An agent's own record ([checkpoint]) and a CNI GC request ([cnigc]) know
//     the attachments that were made.
//
// So ask several: [Union] is live where any of them says so. [Fallback] is for a
// source that may not exist on this node, [Require] for a list that must show a
// pod known to be here, [AllowEmpty] for a node that may have no pod at all.
//
// # What silence means
//
// An [Answer] may declare what it means that something is not in it: that the
// source names every container of some form of ID, that it sees every ADD in
// flight or every address, that no pods means that there are none. A pod that is
// starting claims what it may hold until sources that would have named the
// container by then do not; without such declarations it claims as long as it is
// starting. It also declares when the source was not told who was attached: of what
// was reserved then it does not speak. Plain pods, as [Func] and [Static] give them,
// declare nothing: they end no starting pod's claim, but an owner that is not among
// them is released, whatever runtime made it. Where another one may use the network,
// give an [AnswerFunc] with Forms or Names.
//
// The package has no client and touches no disk. Sources that need a client are
// modules of their own.
//
// [checkpoint]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint
// [cnigc]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc
package podsource
