// SPDX-License-Identifier: Apache-2.0

// Parts are the programs of the nodes in the tests, by the name under which it is called: a CNI plugin that fails on
// request (gate, lease), an OCI runtime (runclite, runsclite), a client (the argument gocni), and the program of
// containers, which waits for a signal (pause).
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	name := filepath.Base(os.Args[0])
	var err error
	switch {
	case name == "gate" || name == "lease":
		gate(name)
		return
	case name == "runclite" || name == "runsclite":
		err = runLite(name)
	case len(os.Args) > 1 && os.Args[1] == "gocni":
		err = gocni(os.Args[2:])
	case name == "pause":
		end := make(chan os.Signal, 1)
		signal.Notify(end, os.Interrupt, syscall.SIGTERM)
		<-end
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(1) //nolint:forbidigo // the status of a failure
}
