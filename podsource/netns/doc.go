// SPDX-License-Identifier: Apache-2.0

// Package netns is a pod source that asks the kernel: which CNI ADDs are under way
// on this node, and which addresses are configured in its network namespaces?
//
//	kernel, err := netns.New(netns.Options{})
//	...
//	source := podsource.Union(kubelet, runtime, kernel)
//
// What it sees does not depend on a record that may be lost. A runtime that lost the record of
// a sandbox, while its processes and its network namespace live on, does not list it; kubelet
// and the API server forget a pod that was deleted by force. The kernel still has the address
// (hazards 33 and 35). And only this source sees an ADD while it runs: the runtime lists a
// sandbox when its start has ended.
//
// It knows no names, so its pods only keep reservations. Its answer is supplementary: alone it
// lets nothing be released, and an empty answer is no error.
//
// It sees addresses: the answer has every address that is configured in a network namespace of
// this node, and declares that. A reservation whose container no other source could know is
// then not foreign; it is kept as long as its address is configured (R14, hazard 49). The
// report says where each address was seen: in which namespace, and through which process or
// mount (hazard 79).
//
// It speaks of a network only if the caller asserts that the main plugin configures the
// addresses in the namespace, and only while every interface of a container that is up shows
// one (Options.Networks; hazard 59).
//
// It sees ADDs in flight: a CNI plugin is called with CNI_COMMAND and CNI_CONTAINERID in its
// environment. So a process with CNI_COMMAND=ADD there runs an ADD and claims the reservations
// of its container, however long it takes (hazard 65). Between two plugins of a chain there is
// no such process for a short time (hazard 72), so each call looks at processes at least twice.
// Two kinds of processes claim nothing: one that runs for longer than Options.LongestADD, and
// one inside the namespace that it claims to set up, in another PID namespace than the node's,
// as in a container (hazard 78).
//
// libcni's cache of results names a container as soon as its ADD has ended. With both sources
// a container is always seen. See package cnicache.
//
// # What it reads
//
// It reads every network namespace except the node's own, each once:
//
//   - those of processes, and of their threads: a thread may have a namespace of its own, and
//     may outlive the first thread, through which the process is shown.
//   - those that are mounted in the mount namespace of any process: under /run/netns, as
//     containerd and CRI-O do, under /run/docker/netns, or elsewhere. The paths need not be
//     configured, and need not be mounted into the agent's container. Processes of one mount
//     namespace with different roots see different mounts, so each root is read (hazard 60).
//
// Of each namespace it reads all addresses of all interfaces, except loopback and link-local
// ones. A namespace without any is left out: it would be a pod that may hold every reservation
// without a known owner (R4).
//
// Of each process it reads the environment. With 1,000 processes and 250 namespaces a call
// takes some 0.1 s of CPU time, and twice as much if each process has mounts of its own.
//
// # What it cannot see
//
//   - The pod or container of an address, except while an ADD is in flight. So by itself it
//     speaks of no network.
//   - A container whose ADD has ended and whose namespace shows no address, as with gVisor,
//     VFIO and KubeVirt (hazards 59 and 71). Package cnicache names it.
//   - An ADD that runs in no process with CNI's environment, as in a server without plugins.
//   - A namespace that only an open descriptor holds, and one whose only mount is hidden under
//     another mount. No process is in those.
//   - Whether an address belongs to a pod of this node, or to a container of a nested node:
//     both are kept (hazard 79).
//   - Loopback and link-local addresses.
//
// # What it needs
//
// It needs Linux, CAP_SYS_PTRACE and CAP_SYS_ADMIN, and must see all processes of the node: a
// privileged container with hostPID. On a node that is itself a container, a process must show
// that (Options.Nested): for an agent without hostPID its own pod looks like such a node. A
// missing right is an error that names it, and never a shorter list (R2). AtStartup of package
// gc retries on such an error, too: without these rights each start of the agent takes
// gc.Options.StartupTimeout. A process that ends during the call has left its namespaces.
//
// A tenant must not be able to make every call fail. So in some cases the answer has what was
// found, without the declaration that all addresses are in it: if a namespace can't be opened
// where it is mounted, if its addresses change all the time, or if there are too many mounts.
// See [Source.Pods].
//
// A thread that does nothing else enters a network namespace for one system call, which makes
// a socket; the socket is then used from outside. A thread that can't return ends.
package netns
