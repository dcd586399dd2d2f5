// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// completeAddresses lets a shell complete the addresses that commands take: those that are reserved in the data directory, in the
// networks of --network.
func (a *app) completeAddresses(root *cobra.Command) {
	complete := func(c *cobra.Command, args []string, begun string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		f := &a.flags
		var listed hostlocal.Listing
		if len(args) == 0 { // otherwise it has its address
			listed, _ = hostlocal.New(f.dataDir).List(c.Context()) // a completion can't report an error
		}
		for i := range listed.Reservations {
			r := &listed.Reservations[i]
			named := len(f.networks) == 0 || slices.Contains(f.networks, gc.AllNetworks) || slices.Contains(f.networks, r.Network)
			ip := r.IP.String()
			if named && strings.HasPrefix(ip, begun) {
				found = append(found, cobra.CompletionWithDesc(ip, r.Network))
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range root.Commands() {
		if strings.Contains(c.Use, "ADDRESS") {
			c.ValidArgsFunction = complete
		}
		if c.Name() == "release" { // repair takes addresses that are not reserved
			_ = c.RegisterFlagCompletionFunc("ip", complete)
		}
	}
}
