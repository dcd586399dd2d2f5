// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "hostlocal-gc",
		Short: "Find and release the IP addresses that host-local leaked on this node",
		Long: `The CNI plugin host-local keeps one file for each address that it handed out.
If a pod ends without a CNI DEL, its file stays, until the node can start no
pod: "no IP addresses available in range set".

hostlocal-gc compares these files with the live pods of the node, and releases
what leaked, under the plugin's own lock. What is in doubt is kept, with a
reason. Start with check, then plan, then release, or run the agent.

Exit status: 0 success, 1 error, 2 wrong usage, 3 if check or fleet finds a
problem.`,
		RunE: func(*cobra.Command, []string) error {
			return usagef("a command is missing: check, plan, release, repair, remove-malformed, agent, fleet or map")
		},
		Version:       version() + " " + runtime.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages", "Flags.FlagUsagesWrapped 80"))
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(a.checkCommand(), a.planCommand(), a.releaseCommand(), a.repairCommand(),
		a.removeMalformedCommand(), a.agentCommand(), a.fleetCommand(), a.mapCommand(), sourcesTopic())
	for _, c := range root.Commands() {
		c.Args = noArgs
	}
	return root
}

func (a *app) planCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what release would do, and why",
		Long: `Show what release would do, and why. It releases nothing, takes no lock and
writes nothing. Addresses in use are only counted; --all shows them. With --ip
it shows these addresses, and what each source says of them.`,
		Example: `  hostlocal-gc plan
  hostlocal-gc plan --ip 10.244.1.7
  hostlocal-gc plan --all --source file:pods.json`,
		RunE: a.once(a.plan),
	}
	c.Flags().BoolVar(&a.flags.all, "all", false, "show every reservation, also those in use, and those on the disk if no source answers")
	c.Flags().StringArrayVar(&a.flags.ips, "ip", nil, "show this `ADDRESS`, and what each source says of it (repeatable)")
	a.flags.pass(c)
	return c
}

func (a *app) releaseCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "release",
		Short: "Release what leaked, in one pass",
		Long: `Release what leaked in the networks of --network, in one pass, and show what
was done. All networks of the data directory are read, because a container may
hold addresses in several. The plugin's lock is held for about 2 ms at a time.
Addresses in use are only counted; plan --all shows them.`,
		Example: `  hostlocal-gc release --network podnet --source file:pods.json
  hostlocal-gc release --network podnet --source file:pods.json --ip 10.244.1.7`,
		RunE: a.once(a.release),
	}
	c.Flags().StringArrayVar(&a.flags.ips, "ip", nil, "release this `ADDRESS` only, if it is leaked (repeatable)")
	a.flags.pass(c)
	return c
}

// noArgs refuses arguments, which people pass who mean a flag.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%s takes no arguments, and got %q; name a network with --network",
		cmd.Name(), strings.Join(args, " "))
}

// sourcesTopic is the text of help sources.
func sourcesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "sources",
		Short: "Which sources --source can name",
		Long: `A source lists the live pods of this node. No source sees everything, so give
several: an address is kept if any of them lists its pod or container. Without
--source it is what a usual node has: kubelet or else the API server, the
runtime, the kernel, libcni's cache. What does not exist is left out, and the
report says why. A source that is named must exist.

  file:PATH         a JSON array of pods; - is standard input
  kubelet[:SOCKET]  kubelet's Pods API, from Kubernetes 1.37 on
  kube[:NODE]       the API server; beside kubelet it is asked only where that
                    has no such API
  cri[:ENDPOINT]    the container runtime, as unix:///run/crio/crio.sock;
                    without an endpoint those that are found
  netns[:nested]    the kernel: the CNI ADDs under way and the addresses in all
                    network namespaces of this node; nested where the node is
                    itself a container
  cnicache[:DIR]    libcni's cache of results, beside netns; several directories
                    are one cache`,
	}
}

// version returns the version that go install or the release recorded in the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
