// SPDX-License-Identifier: Apache-2.0

// Package netns is a pod source that asks the kernel: which CNI ADDs are under way
// on this node, and which addresses are configured in its network namespaces?
//
//	kernel, err := netns.New(netns.Options{})
//	...
//	source := podsource.Union(kubelet, runtime, kernel)
//
// No record can lose what it sees. A runtime that lost a sandbox's record, while
// the processes and the network namespace live on, does not list it; kubelet and
// the API forget a pod that was deleted by force. The kernel still has the address
// (hazards 33 and 35). And no source but this one sees an ADD while it runs: the
// runtime lists a sandbox only when its start is over.
//
// It knows no names, so what it says only adds reasons to keep. Its answer is
// supplementary: alone it lets nothing go, and finding nothing is no error.
//
// It sees addresses: every address that is configured in a network namespace of
// this node is in the answer, and the answer says so. A reservation whose
// container no other source could know is then not kept as foreign, but for as
// long as its address is configured (R14, hazard 49). The report says of each
// address where it was seen: in which namespace, and by which process or at which
// mount that was found (hazard 79).
//
// It speaks of a network only where the caller says that the main plugin configures
// addresses in the namespace, and while no interface of a container shows none
// ([Options].Networks; hazard 59).
//
// It sees ADDs in flight: whoever runs a CNI plugin sets CNI_COMMAND and
// CNI_CONTAINERID in its environment, so a process that has ADD there runs one,
// and claims what its container holds, however long that takes (hazard 65).
// Between two plugins of a chain there is no such process for a moment (hazard
// 72): processes are looked at at least twice in each question. A process that
// runs for longer than Options.LongestADD claims nothing, nor does one that is in
// the very namespace that it says it sets up, and in another PID namespace than the
// node, as a container's is (hazard 78).
//
// With libcni's cache of results, which names a container from when its ADD has
// ended, there is no moment in which a container shows nothing. See package
// cnicache.
//
// # What is looked at
//
// Every network namespace but the node's own, each once:
//
//   - those that processes are in. Their threads are looked at, too: a thread may
//     have a namespace of its own, and may outlive the one that the process is
//     shown by.
//   - those that are mounted anywhere, in the mount namespace of any process:
//     under /run/netns, as containerd and CRI-O do, or /run/docker/netns. Where
//     they are mounted need not be told, and the directory need not be mounted
//     into the agent's container. Processes of one mount namespace with different
//     roots see different mounts, so each is looked at (hazard 60).
//
// Of each namespace come all addresses of all interfaces, except loopback and
// link-local ones. One without any is left out: it would be a pod that may hold
// whatever nobody else does (R4).
//
// Of each process comes its environment. Of 1,000 processes and 250 namespaces a
// question takes some 0.1 s of CPU time, and twice as much where each process has
// mounts of its own.
//
// # What it cannot see
//
//   - Whose an address is: it knows no names, and no container but that of an ADD
//     under way. So it speaks of no network by itself.
//   - A container whose ADD has ended and whose namespace shows no address, as with
//     gVisor, VFIO and KubeVirt (hazards 59 and 71). Package cnicache names it.
//   - An ADD that runs in no process with CNI's environment, as in a server that
//     does without plugins.
//   - A namespace that nothing but an open descriptor holds, and one whose only
//     mount is hidden under another. Nobody is in those.
//   - Whether an address is that of a pod of this node, or of a container of a node
//     within it: either is kept (hazard 79).
//   - Loopback and link-local addresses.
//
// # What it needs
//
// Linux, CAP_SYS_PTRACE and CAP_SYS_ADMIN, and to see all processes of the node:
// a privileged container with hostPID. On a node that is itself a container, some
// process must show that it is one (Options.Nested): to an agent without hostPID
// its own pod looks like such a node. What it may not look into is an error
// that says what is missing, and never a shorter list (R2). The hook of package gc
// tries again all the same: without these rights each start of the agent waits out
// gc.Options.StartupTimeout. A process that ends meanwhile has left its namespaces.
//
// Where a tenant could make that fail, what was found is an answer all the same,
// without the declaration that all addresses are in it: see [Source.Pods]. That
// goes for a namespace that can't be opened where it is mounted, for one whose
// addresses change all the time, and for mounts without number.
//
// A network namespace is entered by a thread that is used for nothing else
// meanwhile, and for one system call: there a socket is made, which answers from
// outside. A thread that can't come back ends.
package netns
