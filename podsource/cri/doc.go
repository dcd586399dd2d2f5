// SPDX-License-Identifier: Apache-2.0

// Package cri is a pod source that asks the container runtime over its CRI
// socket: containerd, CRI-O, cri-dockerd.
//
//	runtime, err := cri.New("unix:///run/containerd/containerd.sock", cri.Options{})
//	...
//	source := podsource.Union(kubelet, runtime)
//
// The runtime names every sandbox by the container ID under which it called CNI
// ADD, which is the ID in the sandbox's reservations. So a sandbox keeps what it
// holds in all networks, with or without addresses in anybody's status, and also
// after its pod was deleted by force (hazards 02, 05, 22, 35). Every sandbox that
// is listed is live, in any state: one that is not ready can still own its
// addresses until it is removed.
//
// # What it cannot see
//
//   - A sandbox that is being set up. It is listed only after its ADD, and after
//     the pause image was pulled. So what nobody but a runtime could name is kept
//     until it is older than [podsource.RuntimeLag] (R5, hazards 04 and 71).
//   - A sandbox whose record it lost, while the processes and the network
//     namespace live on (hazard 33).
//   - Containers that were not made over the CRI, as those of nerdctl and ctr.
//     Their IDs have another form where their namespace is part of it, and then
//     what they own is kept as foreign (R14, hazard 49). A list of sandboxes names
//     IDs of 64 hexadecimal digits and no others. Where theirs are just that, as
//     those of Podman with CNI, nothing tells them apart: unite it with packages
//     netns and cnicache, or give such containers a network of their own.
//   - A runtime that is stopped when a search looks for it, as it takes its socket
//     with it, and one that listens where nobody looks (hazards 29 and 53). Nor
//     which of several is kubelet's: a stranger with a sandbox of its own counts as
//     one of the node's.
//
// # What to ask beside it
//
// Do not ask it alone. Ask [podsource.Union] of kubelet and the runtime at least, and of
// netns and cnicache where the agent may see the node's processes: without those a
// sandbox whose record the runtime lost loses its address (hazards 33 and 59). kubelet knows pods that are still starting, the runtime knows
// every sandbox. A pod that is starting claims what nobody else owns, and the
// runtime ends that claim on a reservation whose container it does not list for
// long enough (R4, hazard 39). Add package netns where the agent has the privilege.
//
// # One runtime, or several
//
// Name the endpoint where it is known: kubelet's configuration has it as
// containerRuntimeEndpoint. Without one [New] searches: where crictl is told to
// look, and in the usual places of containerd, CRI-O, cri-dockerd, k3s, RKE2, k0s
// and MicroK8s. All runtimes that answer there are united, and one without a
// sandbox is no answer. On a node with two runtimes name both, each in a source of
// its own, and unite them. Whoever searches asserts that all runtimes of the node
// run. In a container the sockets, and crictl's configuration, have to be mounted.
//
// # Errors
//
// What can't be read is an error of the whole list (R2). An error wraps
// [podsource.ErrIncomplete] where waiting may help: the runtime is starting,
// recovering or stopped, or did not answer within Options.Timeout. A socket that is missing is that too, and never
// [podsource.ErrNotHere], so that [podsource.Fallback] does not replace a runtime
// that is being restarted while its sandboxes run.
package cri
