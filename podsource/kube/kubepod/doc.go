// SPDX-License-Identifier: Apache-2.0

// Package kubepod makes a [podsource.Pod] of a Kubernetes pod: [Convert] is the
// one place that says what of a pod's object counts as a claim on an address.
//
// It is for whoever has pods already, from a client, an informer or kubelet. It
// needs the types of the Kubernetes API and no client.
//
// # What it cannot see
//
//   - Which sandbox a pod has: no status has its ID. So nothing here ends the claim
//     of a pod that is starting (R4), and ask the container runtime too.
//   - The sandbox of a pod whose object is gone, as after a deletion by force
//     (hazard 35).
//   - Whether the sandbox of a pod is still up where kubelet does not tell
//     (Kubernetes before 1.29): a pod whose containers have all ended holds what it
//     names for five minutes more (hazards 13 and 57).
//   - When the containers of a pod end that kubelet rejected while they ran: they
//     have five minutes from when it was first seen so (hazard 56).
//   - The addresses of a second network that are in no annotation (hazard 22), and
//     whether an annotation tells the truth: anybody may write it who may change the
//     pod. What it names is kept in every network, so a lie keeps a leak, and
//     releases nothing.
package kubepod
