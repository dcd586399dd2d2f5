// SPDX-License-Identifier: Apache-2.0

// Package cnicache is a pod source that reads libcni's cache of results: one file
// for each attachment whose ADD succeeded. It serves every runtime that uses
// libcni, without a client: containerd, CRI-O, nerdctl, Nomad, BuildKit, Multus.
//
//	kernel, err := netns.New(netns.Options{})
//	...
//	cache, err := cnicache.New(cnicache.Options{Living: kernel.Living})
//	...
//	source := podsource.Union(kernel, cache)
//
// Between them the two see a container from its reservation to its end. While its
// ADD runs, the kernel shows the plugin's process. From then on it is in the cache,
// also where its network namespace shows no address, as with gVisor, VFIO and
// KubeVirt (hazards 59 and 71). That pair is enough on a node without Kubernetes.
//
// # What lives
//
// An entry is live while its network namespace is. libcni writes down the
// namespace's path since 1.2; before, the result often has it, as the sandbox of an
// interface. Whether a namespace lives at a path, [Options].Living says: package
// netns looks at the mounts of all processes of the node for that, and follows
// symbolic links as process 1 sees them. Nothing else is taken for a sign of life,
// least of all this process's own view of the path.
//
// An entry without any path can't be looked up. It counts as unproven for as long
// as it is of this boot: it keeps what it names until a container runtime that
// would name it has not for long (R4). So does one whose path can't be decided. A
// file that is torn, empty or can't be read
// claims by its name in the same way (hazard 70).
//
// # What its silence means
//
// The answer is supplementary, so an empty cache, or none, is no error. It declares
// that every container whose ADD has ended is in it, by its container ID. That
// counts in a network only if the cache proves to be the node's in this very pass:
// some record in it, live or stale, is that of a reservation's owner, and every
// reserved address that is seen in a network namespace has a record of its owner,
// or its owner's ADD is under way. Even there it counts only for reservations that
// are younger than the oldest record, or have a record themselves, or are from
// before the node booted: a record of the others may have been wiped. So a wrong
// directory, an empty or a wiped one, and a node of which the kernel was not asked
// make nothing less safe.
//
// The source remembers the records of the question before. While one of those is
// still there, and the namespaces of those that are not are gone, the oldest of them
// counts as the oldest. A directory that is there and empty counts from its last
// change.
//
// # What it cannot see
//
//   - An ADD under way, and one that failed: libcni writes an entry when the whole
//     chain has succeeded. Package netns sees the former.
//   - Whether a namespace lives: it asks [Options].Living. Where that can't tell, or
//     the entry names no namespace, the container is kept as unproven (hazard 70).
//   - A container that was attached without libcni, or with a cache in a directory
//     that [Options].Dirs does not have.
//   - That an entry was wiped, but by what is gone with it: it speaks only of what is
//     younger than its oldest record (hazard 70).
//   - Pods, by name: it knows containers.
//
// # Where it is
//
// libcni's own directory is /var/lib/cni/results. Multus has one for its
// delegates, /var/lib/cni/multus/results. A runtime may be told another one.
// Container agents need the node's directories mounted, read-only.
package cnicache
