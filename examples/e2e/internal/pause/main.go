// SPDX-License-Identifier: Apache-2.0

// Pause is the program in the sandboxes of the tests. It waits for a signal.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	<-end
}
