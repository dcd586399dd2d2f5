// SPDX-License-Identifier: Apache-2.0

// Package podsource says what a source of live pods is, and combines sources.
//
// A [Source] answers one question: which pods are live on this node? It answers
// completely or with an error. Sources differ in what they can see:
//
//   - An API server or kubelet knows pods that are still starting, and the
//     addresses of those that run, but not a pod that was force-deleted and
//     whose sandbox still runs.
//   - A container runtime knows every sandbox by the container ID that owns its
//     reservations, but not a sandbox that is being set up.
//   - An agent's own record ([checkpoint]) and a CNI GC request ([cnigc]) know
//     the attachments that were made, and need nobody else to answer.
//
// So ask both: [Union] is live where any of them says so. [Fallback] is for a
// source that may not exist on this node, [Require] for a list that must show a
// pod known to be here.
//
// The package has no client and touches no disk. Sources that need a client are
// modules of their own.
//
// [checkpoint]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint
// [cnigc]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc
package podsource
