// SPDX-License-Identifier: Apache-2.0

// Pause is what the sandboxes of the tests run: it waits to be ended.
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
