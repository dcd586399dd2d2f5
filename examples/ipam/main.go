// SPDX-License-Identifier: Apache-2.0

// Command hostlocal-gc-ipam is the CNI IPAM plugin host-local with one addition:
// an ADD that fails for want of an address releases what leaked, and tries again.
//
// It hands every command to the real host-local, with the configuration as it is,
// and gives its bytes and its exit code back. So there is one directory, one lock
// and one format, and going back is a matter of the configuration. Three failures of
// ADD are treated (add_linux.go):
//
//   - no address is left: one pass of package gc over the network, with the kernel
//     and libcni's cache as sources (pass_linux.go), however many ADDs fail at once
//     (storm_linux.go);
//   - the container has an address already, of an ADD before a crash or a reboot
//     (own_linux.go);
//   - a requested address is not free: the first or the second of these, by whose
//     it is.
//
// Nothing of this is done, nor read, before an ADD failed. On other systems than
// Linux the plugin only delegates. See README.md beside this file.
package main

import "os"

func main() { os.Exit(run()) }

const ownDelegate = "hostlocal-gc-ipam was executed as its own delegate: put the real host-local beside it as " + realName

// run does what the runtime asks for, and returns the exit code.
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
