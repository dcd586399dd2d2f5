// SPDX-License-Identifier: Apache-2.0

// Package netns is a pod source that asks the kernel which CNI ADDs are in flight on this
// node, and which addresses are configured in its network namespaces.
//
//	kernel, err := netns.New(netns.Options{})
//	...
//	source := podsource.Union(kubelet, runtime, kernel)
//
// It needs no record that may be lost. A runtime that lost the record of a running sandbox does
// not list it; kubelet and the API server forget a pod that was deleted by force. The kernel
// still has the address (hazards 33 and 35). Only this source sees an ADD while it runs: a
// runtime lists a sandbox after it has started.
//
// Its pods have no names and only keep reservations. Its answer is supplementary: alone it
// lets nothing be released, and an empty answer is no error.
//
// It sees addresses: the answer has every address that is configured in a network namespace of
// this node, and declares that. A reservation whose container no other source could know is
// then not foreign; it is kept as long as its address is configured (R14, hazard 49). The
// report says where each address was seen: the namespace, and a process or a mount that leads
// to it (hazard 79). It speaks of the networks that the caller names (Options.Networks).
//
// It sees ADDs in flight: a CNI plugin is called with CNI_COMMAND and CNI_CONTAINERID in its
// environment. A process with CNI_COMMAND=ADD in its environment runs an ADD and claims the
// reservations of its container, however long it takes (hazard 65). Between two plugins of a
// chain there is no such process for a short time (hazard 72), so each call reads all processes
// at least twice, and once their mounts if no network namespace is among them. Two kinds of
// processes claim nothing: one that has run for longer than Options.LongestADD, and one in a
// container, outside the node's PID namespace, that is already in the network namespace that
// its environment names (hazard 78).
//
// libcni's cache of results names a container as soon as its ADD has ended. Together both
// sources see every container. See package cnicache.
//
// # What it reads
//
// It reads every network namespace, each once. The addresses of the node's own are no pod's,
// and a reservation of one is kept (hazard 87). The others are:
//
//   - those of processes and their threads: a thread may have a namespace of its own, and
//     may outlive the process's first thread.
//   - those that are mounted in the mount namespace of any process: under /run/netns, as
//     by containerd and CRI-O, under /run/docker/netns, or elsewhere. The paths need not be
//     configured, and need not be mounted into the agent's container. Processes of one mount
//     namespace with different roots see different mounts, so each root is read (hazard 60).
//
// It reads all IP addresses of all interfaces, except loopback and link-local ones, and the
// environment of each process. With 1,000 processes and 250 namespaces a call takes some 0.05 s
// of CPU time, and twice as much if each process has mounts of its own.
//
// # What it cannot see
//
//   - The pod or container of an address, except while an ADD is in flight.
//   - A container whose ADD has ended and whose namespace shows no address, as with gVisor,
//     VFIO and KubeVirt (hazards 59 and 71). Package cnicache names it.
//   - An ADD without a process that has CNI's environment, as in a server without plugins.
//   - A namespace without processes that is only open as a descriptor, or whose only mount is
//     hidden under another mount, is in a mount namespace that only a thread or no process is in,
//     or is below no process's root.
//   - Whether an address belongs to a pod of this node, or to a container of a nested node:
//     both are kept (hazard 79).
//   - A network namespace that gets the inode number of one that was read and ended during the same
//     call: the kernel uses such a number again. The next call sees it.
//   - An address that no interface has, and only a route of the type local gives to the
//     namespace, as by "ip route add local 10.0.0.0/24 dev lo" (AnyIP). The container answers at
//     it all the same.
//
// # What it needs
//
// It needs Linux, CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH, and must see all processes
// of the node: a privileged container with hostPID. A missing privilege is an error that names it,
// never a shorter list (R2). AtStartup of package gc retries after such an error, too: without
// these privileges each start of the agent takes gc.Options.StartupTimeout.
//
// A tenant should not be able to make every call fail, so an answer may lack a declaration instead:
// see [Source.Pods]. Only 100 readings that hang at once are an error: who may start 100 processes
// and mount a file system that hangs can bring that about.
package netns
