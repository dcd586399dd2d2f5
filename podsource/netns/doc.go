// SPDX-License-Identifier: Apache-2.0

// Package netns is a pod source that asks the kernel: which addresses are
// configured in the network namespaces on this node?
//
//	kernel, err := netns.New(netns.Options{})
//	...
//	source := podsource.Union(kubelet, runtime, kernel)
//
// It is the witness that no record can lose. A runtime that lost a sandbox's
// record, while the processes and the network namespace live on, does not list
// it; kubelet and the API forget a pod that was deleted by force. The kernel
// still has the address (hazards 33 and 35).
//
// It knows neither names nor containers, so what it says only adds reasons to
// keep. It does not see a pod that has no address yet: for that one stand the
// minimum age (R5), and the sources that it is united with. Alone it does not
// do.
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
//     they are mounted need not be told, and the folder need not be mounted into
//     the agent's container.
//
// A namespace that nothing but an open descriptor holds is not found, and
// neither is one whose only mount is hidden under another. Nobody is in those.
//
// Of each namespace come all addresses of all interfaces, except loopback and
// link-local ones. One without any is left out: it would be a pod that may hold
// whatever nobody else does (R4). So the answer is empty on a node without pods,
// and that is the empty view that a pass refuses (R9), unless another source has
// seen somebody, if only a pod in the node's network.
//
// # What it needs
//
// Linux, CAP_SYS_PTRACE and CAP_SYS_ADMIN, and to see all processes of the node:
// a privileged container with hostPID. What it may not look into is an error
// that says what is missing, and never a shorter list (R2). A process that ends
// meanwhile has left its namespaces.
//
// A network namespace is entered by a thread that is used for nothing else
// meanwhile, and for one system call: there a socket is made, which answers from
// outside. A thread that can't come back ends.
package netns
