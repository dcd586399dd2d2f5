// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const longHelp = `The CNI plugin host-local keeps one file for each address that it has handed out.
Where a pod went away without a CNI DEL its file stays, until the node can start
no pod. This agent compares those files with the pods that live here, when it
starts and from time to time, and releases what leaked under the plugin's own
lock. What is in doubt is kept, and the doubt is told.

All networks of the data directory are read: a container that holds an address in
one is live in the others. Addresses are released only in the networks that are
named with --network.

Each flag can be set by the environment variable that stands behind it. A flag on
the command line wins, and an empty variable counts as not set. What may be given
several times is separated by white space there.

SIGHUP asks for a pass, which comes five seconds after the last one at the
earliest. SIGTERM ends the agent within a second.

Exit status: 0 told to end, 1 error, 2 wrong usage.`

// defaultListen is on loopback: a report names pods and addresses.
const defaultListen = "127.0.0.1:9776"

// settings are the values of all flags.
type settings struct {
	dataDir  string
	networks []string

	sources    []string
	require    []string
	allowEmpty bool

	requestTimeout time.Duration
	minAge         time.Duration
	startingFor    time.Duration
	interval       time.Duration
	startupTimeout time.Duration
	dryRun         bool

	listen  string
	cniConf []string

	node       string
	events     bool
	kubeconfig string

	verbose int
}

func (s *settings) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&s.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data `DIR`, which has a directory for each network")
	f.StringArrayVar(&s.networks, "network", nil,
		"release in the network of this `NAME`, whether it has a directory yet or not (repeatable; one at least): one whose containers the sources know")
	f.StringArrayVar(&s.sources, "source", nil, "which pods live here, as `KIND[:ARG]` (repeatable, united; one at least): "+source.Usage())
	f.StringArrayVar(&s.require, "require-pod", nil, "refuse an answer without this pod, as `NS/NAME` (repeatable): one that surely runs here, as this agent's own")
	f.BoolVar(&s.allowEmpty, "allow-empty", false, "believe a source that reports no pod at all")
	f.DurationVar(&s.requestTimeout, "runtime-request-timeout", gc.DefaultRuntimeRequestTimeout,
		"kubelet's runtimeRequestTimeout `T`: an ADD may be in flight for twice as long")
	f.DurationVar(&s.minAge, "min-age", 0,
		"keep what is younger; less than 2T+3m counts only where the sources see every ADD in flight, every address and every attachment (default 2T+3m)")
	f.DurationVar(&s.startingFor, "starting-for", 0,
		"keep what is younger while a pod is starting, and what is older, too, unless a source would have named its container by then; 2T+10m or more (default 2T+10m)")
	f.DurationVar(&s.interval, "interval", gc.DefaultInterval, "make a pass so often, and earlier when one is worth it")
	f.DurationVar(&s.startupTimeout, "startup-timeout", gc.DefaultStartupTimeout, "wait so long for the sources at the start, with growing pauses")
	f.BoolVar(&s.dryRun, "dry-run", false, "release nothing, and take no lock: only show what leaked")
	f.StringVar(&s.listen, "listen", defaultListen, "serve HTTP at this `HOST:PORT`; --listen= serves nothing")
	f.StringArrayVar(&s.cniConf, "cni-conf", nil, "take the ranges, for the picture and the metrics, from this conf or conflist `FILE` (repeatable)")
	f.StringVar(&s.node, "node", "", "`NAME` of this node (also $NODE_NAME)")
	f.BoolVar(&s.events, "events", false, "tell of releases and refused passes in Kubernetes Events on the node")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server (default: as a pod in the cluster does)")
	f.IntVarP(&s.verbose, "verbose", "v", 0, "log to stderr up to this `LEVEL`: 0 each pass, release and error, 2 also what was kept though no pod has it, 4 everything")
	nameVariables(f)
}

// check refuses what is wrong whatever the node looks like. Names of networks
// and durations are left to gc.New.
func (s *settings) check() error {
	if s.dataDir == "" {
		return errors.New("--data-dir is empty")
	}
	if len(s.networks) == 0 {
		// Not all that have a directory: podman, say, may keep its networks in the
		// same place, and no source here knows its containers (R14).
		return errors.New("a --network is missing: in which networks may addresses be released? " +
			"The names are those of the CNI configuration, and of the directories in the data directory")
	}
	if len(s.sources) == 0 {
		return errors.New("a --source is missing: which pods live here?")
	}
	if s.listen != "" {
		if _, _, err := net.SplitHostPort(s.listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	if s.events && s.node == "" {
		return errors.New("--events needs --node, or NODE_NAME in the environment: which node are they about?")
	}
	return nil
}

// podSource returns what answers which pods are live. What a kind of source
// needs beside its argument is given here, and nowhere else.
func (s *settings) podSource(log logr.Logger) (podsource.Source, error) {
	pods, err := source.Parse(s.sources, source.Env{Node: s.node, Kubeconfig: s.kubeconfig, Logger: log,
		LongestADD: max(s.startingFor, source.LongestADD(s.requestTimeout))}) // a daemon has no standard input
	if err != nil {
		return nil, err
	}
	for _, text := range s.require {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("--require-pod %q is not NAMESPACE/NAME", text)
		}
		pods = podsource.Require(pods, types.NamespacedName{Namespace: namespace, Name: name})
	}
	if s.allowEmpty {
		pods = podsource.AllowEmpty(pods)
	}
	return pods, nil
}

// options are those of the Reconciler.
func (s *settings) options() gc.Options {
	return gc.Options{
		RuntimeRequestTimeout: s.requestTimeout, MinAge: s.minAge, StartingFor: s.startingFor,
		Interval: s.interval, StartupTimeout: s.startupTimeout, DryRun: s.dryRun,
	}
}

// minimumAge is --min-age, or what it is without it.
func (s *settings) minimumAge() time.Duration {
	const margin = gc.DefaultMinAge - 2*gc.DefaultRuntimeRequestTimeout
	return cmp.Or(s.minAge, 2*cmp.Or(s.requestTimeout, gc.DefaultRuntimeRequestTimeout)+margin)
}
