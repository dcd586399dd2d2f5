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
// Together the two see a container from its reservation to its end. While its ADD runs, the
// kernel shows the plugin's process. From then on the container is in the cache, also when
// its network namespace shows no address, as with gVisor, VFIO and KubeVirt (hazards 59 and
// 71). These two sources suffice on a node without Kubernetes.
//
// # What is live
//
// An entry is live while its network namespace exists. libcni records the path of the
// namespace since 1.2; with older versions the result often has it, as the sandbox of an
// interface. [Options].Living reports whether a namespace exists at a path: package netns
// looks for it in the mounts of all processes of the node, and follows symbolic links as
// process 1 sees them. How this process itself sees the path does not count.
//
// An entry without a path is unproven, and so is one whose path Living can't decide, such as one
// in /proc whose process seems to have started after the entry was written: another one may have
// got its PID, or the clock was set (hazard 115). Its container keeps its reservations until a
// container runtime that would name the container has not named it for long enough (R4), or the
// entry is from before the node's boot and was first read L ago (hazard 70). A file that is torn,
// empty or unreadable counts as an entry without a path for the container in its name.
//
// An entry keeps what is reserved for its container, and claims the addresses of its result.
// Loopback, link-local, multicast and unspecified ones claim nothing: with containerd each pod
// has a result of the plugin loopback (hazard 89). host-local may have a range of link-local
// addresses, as for the egress of the AWS VPC CNI (amazon-vpc-cni-k8s, cmd/aws-vpc-cni/main.go,
// egressPluginIpamSubnetV4). Its reservations are kept for the container, and package netns
// lists the addresses, since the kernel has them with global scope.
//
// # What it declares
//
// The answer is supplementary, so an empty or missing cache is no error. It declares that
// the cache names every container whose ADD has ended, by its container ID.
//
// The declaration counts in a network only if this pass proves that the cache is the node's:
// a record in it, live or stale, names the owner of a reservation, and every reserved address
// that is in a network namespace has a record of its owner, or its owner's ADD is in flight.
// Even then it counts only for reservations that have a record whose path shows whether it is
// live, that are younger than their network's oldest record and have none, or that are from before
// the node booted and were first seen L ago; the record of any other may have been wiped. So
// a wrong, empty or wiped directory, or a missing kernel source, releases nothing in use, as
// long as the clock was not set before this process started (A4 of package gc).
//
// The source remembers the records of the last call. While one of a network still exists, and the
// namespaces of those that are gone have ended, the oldest of them counts as the network's oldest
// record.
//
// # What it cannot see
//
//   - An ADD that failed: libcni writes an entry when the whole chain has succeeded.
//   - A container that was attached without libcni, or with a cache in a directory that is
//     not in [Options].Dirs.
//   - The names of pods: it names containers.
//
// # Where the cache is
//
// libcni's own directory is /var/lib/cni/results. Multus has one for its delegates,
// /var/lib/cni/multus/results. A runtime may be configured with another one. An agent in a
// container needs the node's directories mounted, read-only.
package cnicache
