// SPDX-License-Identifier: Apache-2.0

// Command cniserver is a CNI plugin and the server behind it, in the form in
// which vendors build them:
//
//	cniserver plugin   what the runtime calls; it passes the request on
//	cniserver serve    delegates to bridge or ptp with host-local, and keeps the
//	                   record that tells which addresses leaked
//
// A runtime calls it without an argument and with CNI_COMMAND set, which means
// plugin as well.
//
// The server shows how to lose no address and forget none, whenever it dies:
// ADD is intend, reserve, plumb, record; DEL is intend, unplumb, release, forget;
// each step can be repeated; and before the server listens it finishes what it
// had begun and then runs the start-up hook. See README.md beside this file.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	if len(os.Args) == 1 && os.Getenv("CNI_COMMAND") != "" {
		runPlugin()
		return
	}
	// Before anything else: until here a signal ends the process in the middle of
	// what it does, as kill -9 would.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := &cobra.Command{
		Use:           "cniserver",
		Short:         "A CNI plugin and server that loses no address",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(), &cobra.Command{
		Use:   "plugin",
		Short: "Pass one CNI request on, as the environment and stdin have it",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			stop() // it has nothing to end in good order
			runPlugin()
		},
	})
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cniserver:", err)
		os.Exit(1)
	}
}
