// SPDX-License-Identifier: Apache-2.0

// Multicall contains all plugins in one program, as in k3s: its own name says which one runs. With
// an unknown name it succeeds and does nothing.
package main

import (
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) != "host-local" {
		os.Exit(0)
	}
	real := os.Getenv("HOST_LOCAL")
	_ = syscall.Exec(real, []string{real}, os.Environ())
	os.Exit(1)
}
