// SPDX-License-Identifier: Apache-2.0

// Package podsource defines sources of live pods, and combines them.
//
// A [Source] answers one question: which pods are live on this node? It returns all
// pods that it can know of, or an error. Sources know different things:
//
//   - An API server or kubelet knows pods that are still starting, and the
//     addresses of those that run, but not a pod that was deleted by force and
//     whose sandbox still runs.
//   - A container runtime knows every sandbox by the container ID that owns its
//     reservations, but not a sandbox that is being set up.
//   - The kernel knows every address in a network namespace, but not its pod.
//   - An agent's own record ([checkpoint]) and a CNI GC request ([cnigc]) know
//     the attachments that were made.
//
// So combine several: with [Union] a pod is live when any of them says so. [Fallback]
// is for a source that may not exist on this node, [Require] for a list that must
// contain a known pod, [AllowEmpty] for a node that may have no pod at all.
//
// # Declarations
//
// An [Answer] may declare what it means that something is not in it: that the source
// names every container with some form of ID, that it sees every ADD in flight or
// every address, or that there are no pods. It may also declare times in which the
// source was not informed of attachments ([Gap]); the answer does not speak of what
// was reserved then.
//
// A pod that is starting claims every reservation that it may hold. The claim ends
// when a source does not name the container although it would by then. Without a
// source that declares this, the claim lasts as long as the pod is starting.
//
// Plain pods, as [Func] and [Static] return them, declare nothing. They end no claim of
// a starting pod. But an owner that is not among them is released, whatever runtime
// made it. If another runtime may use the network, use an [AnswerFunc] with Forms or
// Names.
//
// This package has no client and does not access the disk. Sources that need a client
// are modules of their own.
//
// [checkpoint]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint
// [cnigc]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc
package podsource
