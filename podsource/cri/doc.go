// SPDX-License-Identifier: Apache-2.0

// Package cri is a pod source that asks the container runtime over its CRI
// socket: containerd, CRI-O, cri-dockerd.
//
//	runtime, err := cri.New("unix:///run/containerd/containerd.sock", cri.Options{})
//	...
//	source := podsource.Union(kubelet, runtime)
//
// The runtime lists every sandbox under the container ID with which it called CNI ADD,
// which is the ID in the sandbox's reservations. So a sandbox keeps its reservations in
// all networks, whether or not a status has its addresses, and also after its pod was
// deleted by force (hazards 02, 05, 22, 35). Every sandbox in the list is live, in any
// state: one that is not ready may own its addresses until it is removed, as by `crictl rmp`.
// Its entry says so ([podsource.Pod.NotRunning] and Origin).
//
// The IDs of containers are claims, too: multus-dynamic-networks-controller attached interfaces
// under the ID of a container (its issue 209), which has the form of a sandbox's. The entry of a
// sandbox has the IDs of the containers in it, in any state: such an interface is in the
// sandbox's network namespace, and stays there when the container ends.
//
// # What it cannot see
//
//   - A sandbox that is being set up. It is listed only after its ADD, and after the
//     pause image was pulled. So a reservation whose owner only a runtime could name
//     is kept for 2 T and 3 minutes, T being kubelet's runtimeRequestTimeout (R5,
//     hazards 04 and 71).
//   - A sandbox whose record the runtime lost while its processes and its network
//     namespace still exist (hazard 33).
//   - An interface that was attached under the ID of a container, after that container was
//     removed. kubelet leaves one that has ended for each container of a pod
//     (maximum-dead-containers-per-container), so the second restart removes it. Package
//     netns sees the address.
//   - Containers that were not made over the CRI, such as those of nerdctl and ctr. If
//     their IDs have another form, with their containerd namespace in it, their
//     reservations are kept as foreign (R14, hazard 49): a list of sandboxes names IDs
//     of 64 hexadecimal digits only. If their IDs have that form too, as those of
//     Podman with CNI, they can't be distinguished: combine the runtime with packages
//     netns and cnicache, or give such containers a network of their own.
//   - In a search, a runtime that is stopped, since its socket is gone, and one with a
//     socket in another place (hazards 29 and 53). A search does not know either which
//     of several runtimes is kubelet's: any with a sandbox counts as the node's.
//
// # What to combine it with
//
// Do not use it alone. Use [podsource.Union] of kubelet and the runtime at least, and of
// packages netns and cnicache if the agent may see the node's processes. Without these,
// a sandbox whose record the runtime lost loses its address (hazards 33 and 59). kubelet
// knows pods that are still starting, the runtime knows every sandbox. A starting pod
// claims reservations without a known owner. The runtime ends that claim when it does
// not list the owner of an old reservation (R4, hazard 39).
//
// # One runtime, or several
//
// Give the endpoint if it is known: it is containerRuntimeEndpoint in kubelet's
// configuration. Without one [New] searches, and assumes that all runtimes of the node are
// running. On a node with two runtimes give both endpoints, each to a source of its own, and
// combine the sources. In a container the sockets and crictl's configuration have to be
// mounted.
//
// # Errors
//
// If the sandboxes or the containers can't be listed, the answer is an error (R2). The error
// wraps [podsource.ErrIncomplete] if a later call may succeed: the runtime is starting,
// recovering or stopped. A missing socket is such an error, too, and never
// [podsource.ErrNotHere]: [podsource.Fallback] must not replace a runtime that restarts while
// its sandboxes run. A status that can't be read spoils its own sandbox only (hazard 90,
// [Options].WithStatus).
package cri
