// SPDX-License-Identifier: Apache-2.0

// Command hostlocal-gc-ipam is a CNI IPAM plugin around the real host-local. It hands
// every command to it, with the configuration as it is, and gives its bytes and its
// exit code back.
package main

import "os"

func main() { os.Exit(run()) }

// run does what the runtime asks for, and returns the exit code.
func run() int {
	if os.Getenv(mark) != "" {
		return printError("hostlocal-gc-ipam was executed as its own delegate: put the real host-local beside it as "+realName, "")
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
