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
// An [Answer] says of which networks it speaks, and what it means there that something is not in
// it: that the source names every sandbox, or every container, late or at once; that it sees
// every ADD in flight or every address; or that there are no pods. It may also declare times in
// which the source was not told of attachments ([Gap]); the answer does not speak of what was
// reserved then. Without declarations nothing is released by an answer alone.
//
// A pod that is starting claims every reservation that it may hold. The claim ends
// when a source does not name the container although it would by then. Without a
// source that declares this, the claim lasts as long as the pod is starting.
//
// Plain pods, as [Func] and [Static] return them, are Kubernetes pods in every network. They end
// no claim of a starting pod, and an owner that is not a sandbox's ID is foreign to them.
// [Attachments] is the source of an agent with a store of its own, and [Sandboxes] that of a
// list of sandboxes. For anything else use an [AnswerFunc].
//
// This package has no client and does not access the disk. Sources that need a client
// are modules of their own. The rules R1 to R14 in the comments are in gc/README.md, in the
// chapter on safety rules.
//
// [checkpoint]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint
// [cnigc]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc
package podsource
