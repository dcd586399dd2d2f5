// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// library has the defaults of package gc.
var library, _ = gc.Options{}.WithDefaults()

// flags are the values of all flags. Each command defines only those that it uses.
type flags struct {
	dataDir   string
	networks  []string
	timeout   time.Duration
	verbose   int
	logFormat string

	sources        []string
	node           string
	kubeconfig     string
	minAge         time.Duration
	startingFor    time.Duration
	requestTimeout time.Duration
	foreign        []string
	memory         string
	allowEmpty     bool
	require        []string

	format string
	all    bool
	ips    []string
	yes    bool

	cniDir  string
	subnets []string

	// of the agent
	dryRun                   bool
	cniConf                  []string
	interval, startupTimeout time.Duration
	listen, metricsListen    string
}

const (
	formatTable = "table"
	formatJSON  = "json"
)

// data adds --data-dir and --network.
func (f *flags) data(c *cobra.Command) {
	f.dir(c)
	c.Flags().StringArrayVar(&f.networks, "network", nil,
		"show, and release in, only the network of this `NAME` (repeatable; without it, or with *, all networks are shown; release needs one)")
}

// pass adds the flags of a command that makes one pass and prints the result.
func (f *flags) pass(c *cobra.Command) {
	f.data(c)
	c.Flags().StringVarP(&f.format, "output", "o", formatTable, "`FORMAT`: table, json")
	f.once(c)
}

func (f *flags) dir(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data `DIR`, which holds a directory for each network")
}

// once adds the flags of a command that judges once. The agent has no --allow-foreign: it is true only for a short time.
func (f *flags) once(c *cobra.Command) {
	c.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "give up after this time; 0 waits for a day")
	f.judge(c)
	c.Flags().StringArrayVar(&f.foreign, "allow-foreign", nil,
		"also judge reservations of owners that no source here could know and that begin with `PREFIX`, or '*' for all (repeatable). "+
			"Only for owners that have certainly ended")
}

// judge adds the flags that control how reservations are judged. Help shows flags in the order in which they are added, so this is called
// last: what removes a protection is not what people should read first.
func (f *flags) judge(c *cobra.Command) {
	c.Flags().SortFlags = false
	c.Flags().StringArrayVar(&f.sources, "source", nil,
		"which pods live here, as `KIND[:ARG]` (repeatable, united; default what a usual node has): "+source.Forms+"; see help sources")
	c.Flags().StringVar(&f.node, "node", os.Getenv("NODE_NAME"), "`NAME` of this node in Kubernetes; else $NODE_NAME, or else the host's name")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig `FILE` for the API server (default: the account of this pod)")
	c.Flags().DurationVar(&f.minAge, "min-age", 0,
		"keep what is younger than this `AGE`, at least 1s (default "+gc.DefaultMinAge.String()+", or as --runtime-request-timeout requires). "+
			"An age below the default is used only if the sources see every ADD in flight, every address and every attachment")
	c.Flags().DurationVar(&f.requestTimeout, "runtime-request-timeout", library.RuntimeRequestTimeout,
		"kubelet's runtimeRequestTimeout `T` on this node: an ADD may take twice as long")
	c.Flags().DurationVar(&f.startingFor, "starting-for", 0,
		"age after which a starting pod no longer keeps a reservation, if a source would have named its container by then; at least 2T+10m (default 2T+10m)")
	c.Flags().StringVar(&f.memory, "memory", "",
		"`FILE` with the time at which each reservation was first seen, and steps of the clock, for the next pass (default "+usualMemory+"; none for no file)")
	c.Flags().StringArrayVar(&f.require, "require-pod", nil,
		"refuse a list of pods or sandboxes without this pod, as `NS/NAME` (repeatable): a pod that certainly runs here")
	c.Flags().BoolVar(&f.allowEmpty, "allow-empty", false, "accept an answer without any pod")
}

// confs adds the flags that say what the ranges are.
func (f *flags) confs(c *cobra.Command) {
	c.Flags().StringVar(&f.cniDir, "cni-dir", defaultCNIDir, "`DIR` with the CNI configurations of the networks")
	c.Flags().StringArrayVar(&f.subnets, "range", nil,
		"range of the network of --network, as a `SUBNET`, instead of a configuration's. Repeatable: those of one family are one range set, "+
			"of which a pod gets one address")
}

// allNetworks reports whether --network is '*'.
func (f *flags) allNetworks() bool { return len(f.networks) == 1 && f.networks[0] == gc.AllNetworks }

// checkAllNetworks returns an error if addresses would be released in all networks without a source
// that sees the containers of every runtime.
func (f *flags) checkAllNetworks() error {
	kernel := func(spec string) bool { return spec == "netns" || strings.HasPrefix(spec, "netns:") }
	if f.allNetworks() && len(f.sources) > 0 && !slices.ContainsFunc(f.sources, kernel) {
		return usagef("--network '*' needs --source netns: another runtime may have containers in some network, and only the kernel sees them all")
	}
	return nil
}

// env returns what the flags say of the sources.
func (a *app) env() (env source.Env, _ error) {
	f := &a.flags
	if f.format != formatTable && f.format != formatJSON {
		return env, usagef("there is no output format %q: give table or json", f.format)
	}
	opts, _ := a.options().WithDefaults() // an error is that of the pass, too, which names the flag
	env = source.Env{Kubeconfig: f.kubeconfig, Stdin: a.stdin}
	env.Name, env.Logger, env.AllowEmpty, env.LongestADD = f.node, a.log, f.allowEmpty, max(opts.StartingFor, 0)
	for _, text := range f.require {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return env, usagef("--require-pod %q is not NAMESPACE/NAME", text)
		}
		env.Require = append(env.Require, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return env, nil
}

// source returns the source that the flags name, or that of a usual node.
func (a *app) source() (podsource.Source, error) {
	env, err := a.env()
	if err != nil {
		return nil, err
	}
	s, err := source.Parse(a.flags.sources, env)
	if err != nil {
		return nil, usageError{err}
	}
	return s, nil
}

// options returns the options of a pass. Only the agent has flags for the second line.
func (a *app) options() gc.Options {
	f := &a.flags
	return gc.Options{
		MinAge: f.minAge, RuntimeRequestTimeout: f.requestTimeout, StartingFor: f.startingFor,
		Interval: f.interval, StartupTimeout: f.startupTimeout, DryRun: f.dryRun,
		AllowForeign: f.foreign, Memory: f.memoryFile(), Logger: a.log,
	}
}

// usualMemory is on a file system that a boot empties.
const usualMemory = "/run/hostlocal-gc/memory"

var defaultMemory = usualMemory // tests replace it

// memoryFile returns the file of --memory, or nothing for none.
func (f *flags) memoryFile() string {
	if f.memory == "none" {
		return ""
	}
	return cmp.Or(f.memory, defaultMemory)
}
