// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
)

// add executes the delegate.
func add(delegate string) int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return printError(fmt.Sprintf("reading the network configuration: %v", err), "")
	}
	r, err := runDelegate(delegate, stdin)
	if err != nil {
		return printError(err.Error(), "")
	}
	if _, err := os.Stdout.Write(r.out); err != nil && r.code == 0 {
		return 1
	}
	return r.code
}
