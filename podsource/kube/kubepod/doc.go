// SPDX-License-Identifier: Apache-2.0

// Package kubepod converts a Kubernetes pod to a [podsource.Pod]: [Convert] decides what in
// a pod's object is a claim on an address.
//
// It is for programs that already have pods, from a client, an informer or kubelet. It
// needs the types of the Kubernetes API and no client.
//
// # What it cannot see
//
//   - Which sandbox a pod has: no status has its ID. So nothing here ends the claim of a
//     starting pod (R4); combine it with the container runtime.
//   - The sandbox of a pod whose object is gone, as after a deletion by force
//     (hazard 35).
//   - Whether the sandbox of a pod still exists, if kubelet does not report that
//     (Kubernetes before 1.29). A pod whose containers have all ended holds its addresses
//     for five minutes more (hazards 13 and 57).
//   - When the containers of a pod end that kubelet rejected while they ran. The pod holds
//     its addresses for five minutes from when it was first seen in this state (hazard 56).
//   - The addresses of a second network that are in no annotation (hazard 22), and whether
//     an annotation is true: every user who may change the pod may write it. Addresses in an
//     annotation are kept in every network, so a false one keeps a leak and releases
//     nothing.
package kubepod
