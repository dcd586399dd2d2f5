// SPDX-License-Identifier: Apache-2.0

// Command hostlocal-gc-ipam is the CNI IPAM plugin host-local with one addition: an ADD that finds
// no address releases what leaked, and tries again.
//
// It passes every command and the unchanged configuration to the real host-local, and returns its
// output and exit code (internal/front). So there is one directory, one lock and one format, and
// only a change of the configuration is needed to go back. After three failures of ADD it makes a
// pass of package gc over the network, with the kernel and libcni's cache as sources, and tries
// again (retry_linux.go):
//
//   - no address is left: concurrent ADDs share the pass (shared_linux.go);
//   - a requested address is not free: the same;
//   - the container already has an address, of an ADD before a crash or a reboot: a pass of
//     its own, which knows that it is this container's (own_linux.go).
//
// Which reservations a pass releases is decided by package gc alone. Before an ADD has failed none
// of this is loaded, and the limits of the cgroup, which the directives below concern, are not read.
// It is for Linux. See README.md.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import "os"

func main() { os.Exit(run()) }
