// SPDX-License-Identifier: Apache-2.0

// Command hostlocal-gc-ipam is the CNI IPAM plugin host-local with one addition: an ADD that finds
// no address releases what leaked, and tries again.
//
// It passes every command and the unchanged configuration to the real host-local, and returns its
// output and exit code. So there is one directory, one lock and one format, and only a change of
// the configuration is needed to go back. Three failures of ADD are treated (add_linux.go):
//
//   - no address is left: one pass of package gc over the network, with the kernel
//     and libcni's cache as sources (pass_linux.go), however many ADDs fail at once
//     (storm_linux.go);
//   - the container already has an address, of an ADD before a crash or a reboot
//     (own_linux.go);
//   - a requested address is not free: like the first or the second case, depending on
//     its owner.
//
// Before an ADD has failed none of this is done or read. On other systems than Linux the plugin
// only delegates. See README.md.
package main

import "os"

func main() { os.Exit(run()) }

const ownDelegate = "hostlocal-gc-ipam was executed as its own delegate: install the real host-local beside it as " + realName

// run executes the runtime's command, and returns the exit code.
func run() int {
	if os.Getenv(mark) != "" {
		return printError(ownDelegate, "")
	}
	delegate, err := findDelegate(os.Getenv("CNI_PATH"))
	if err != nil {
		return printError(err.Error(), "")
	}
	if os.Getenv("CNI_COMMAND") == "ADD" {
		return add(delegate)
	}
	return become(delegate)
}
