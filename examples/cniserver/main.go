// SPDX-License-Identifier: Apache-2.0

// Command cniserver is a CNI plugin and its server, structured like the plugins of
// network vendors:
//
//	cniserver plugin   called by the runtime; forwards the request to the server
//	cniserver serve    delegates to bridge or ptp with host-local, and keeps the
//	                   record of attachments from which leaks are known
//
// Without an argument and with CNI_COMMAND set, as a runtime calls it, it is the plugin.
//
// The server shows how to neither leak nor release an address wrongly, whenever it
// is killed. ADD is: write the intent, reserve, plumb, record. DEL is: write the intent,
// unplumb, release, forget. Each step can be repeated. Before the server listens, it
// finishes interrupted requests and runs the start-up hook. See README.md beside this file.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	if len(os.Args) == 1 && os.Getenv("CNI_COMMAND") != "" {
		runPlugin()
		return
	}
	root := &cobra.Command{
		Use:           "cniserver",
		Short:         "A CNI plugin and server that does not leak addresses",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(), &cobra.Command{
		Use:   "plugin",
		Short: "Forward one CNI request, read from the environment and stdin, to the server",
		Args:  cobra.NoArgs,
		Run:   func(*cobra.Command, []string) { runPlugin() },
	})
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "cniserver:", err)
		os.Exit(1)
	}
}
