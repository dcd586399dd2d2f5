// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/agent"
)

const (
	// defaultListen is on loopback: a report names pods and addresses.
	defaultListen = "127.0.0.1:9776"
	// formatText of a log is key=value, as logfmt. The other one is formatJSON.
	formatText = "text"
)

func (a *app) agentCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "agent",
		Short: "Release what leaked, at the start and in a loop",
		Long: `Release what leaked in the networks of --network, at the start and in a loop,
and show what was done as metrics, as JSON and as a web page.

All networks of the data directory are read: a container that holds an address
in one is live in the others. Addresses are released only in the networks of
--network.

SIGHUP requests a pass, which begins five seconds after the last one at the
earliest, also while the agent starts. SIGTERM ends it within a second.

Exit status: 0 after a signal, 1 error, 2 wrong usage.`,
		Example: `  hostlocal-gc agent --network podnet
  hostlocal-gc agent --network podnet --source cri --source netns --dry-run`,
	}
	c.RunE = func(*cobra.Command, []string) error { return a.agent(c.Context(), c.Flags()) }
	f := &a.flags
	f.dir(c)
	p := c.Flags()
	p.StringArrayVar(&f.networks, "network", nil,
		"release in the network of this `NAME`, which need not have a directory yet (repeatable, required). "+
			"The sources must know its containers. * means all networks that have a directory, "+
			"now or later, and beside named sources needs --source netns")
	p.IntVarP(&f.verbose, "verbose", "v", 0,
		"log up to this `LEVEL`: 0 releases, errors and news, 1 each pass, 2 also what was kept though no pod has it, 4 everything")
	p.StringArrayVar(&f.cniConf, "cni-conf", nil,
		"take the ranges from this CNI configuration `FILE`, a conf or a conflist (repeatable, for several networks)")
	p.DurationVar(&f.interval, "interval", library.Interval, "the longest pause between passes; one comes earlier if it may release something")
	p.DurationVar(&f.startupTimeout, "startup-timeout", library.StartupTimeout, "longest wait for the sources at the start")
	p.BoolVar(&f.dryRun, "dry-run", false, "release nothing, and take no lock: only show what leaked")
	p.StringVar(&f.listen, "listen", defaultListen, "serve all endpoints at this `HOST:PORT`; --listen= serves nothing")
	p.StringVar(&f.metricsListen, "metrics-listen", "", "also serve the endpoints that name no pod: /metrics, /healthz, /readyz and /node, at this `HOST:PORT`")
	p.StringVar(&f.logFormat, "log-format", formatText, "`FORMAT` of the log: text (key=value) or json")
	f.judge(c)
	return c
}

func (a *app) agent(ctx context.Context, given *pflag.FlagSet) error {
	f := &a.flags
	if len(f.networks) == 0 {
		// Do not default to every directory: podman, for example, may keep its networks in the same
		// place, and no source here knows its containers (R14).
		return usagef("a --network is missing: in which networks may addresses be released? " +
			"The names are those of the CNI configuration, and of the directories in the data directory")
	}
	if err := f.checkAllNetworks(); err != nil {
		return err
	}
	if f.logFormat != formatText && f.logFormat != formatJSON {
		return usagef("there is no log format %q: give text or json", f.logFormat)
	}
	opts := &slog.HandlerOptions{Level: slog.Level(-max(0, f.verbose))}
	a.log = logr.FromSlogHandler(slog.NewTextHandler(a.stderr, opts))
	if f.logFormat == formatJSON {
		a.log = logr.FromSlogHandler(slog.NewJSONHandler(a.stderr, opts))
	}
	a.stdin = nil // a daemon does not read it
	s, err := a.source()
	if err != nil {
		return err
	}
	names := f.sources
	if len(names) == 0 {
		names = []string{"those of a usual node"}
	}
	run, err := agent.New(agent.Options{
		Version: version(), DataDir: f.dataDir, Networks: f.networks, Source: s, SourceNames: names, Passes: a.options(),
		Listen: f.listen, MetricsListen: f.metricsListen, CNIConf: f.cniConf, Node: f.node,
		Configuration: configurationHash(given),
	})
	if err != nil {
		return usageError{err}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // until the process ends, which SIGHUP would end
	return run.Run(ctx, hangup)
}

// ofNode are the flags that differ between nodes whose agents have the same settings.
var ofNode = []string{"node", "require-pod", "listen", "metrics-listen", "kubeconfig"}

// configurationHash returns a short hash of the settings that are not the default.
func configurationHash(given *pflag.FlagSet) string {
	h := sha256.New()
	given.VisitAll(func(f *pflag.Flag) {
		if value := f.Value.String(); value != f.DefValue && !slices.Contains(ofNode, f.Name) {
			fmt.Fprintf(h, "%s=%q\n", f.Name, value)
		}
	})
	return fmt.Sprintf("%x", h.Sum(nil)[:4])
}
