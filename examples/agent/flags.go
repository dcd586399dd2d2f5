// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
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

Each flag can be set by the environment variable that stands behind it. A flag on
the command line wins, and an empty variable counts as not set. What may be given
several times is separated by white space there.

SIGHUP asks for a pass now. SIGTERM ends the agent within a second.

Exit status: 0 told to end, 1 error, 2 wrong usage.`

// defaultListen is on loopback: a report names pods and addresses.
const defaultListen = "127.0.0.1:9776"

// everyNetwork, as a --network, is all that have a folder.
const everyNetwork = "*"

// settings are the values of all flags.
type settings struct {
	dataDir  string
	networks []string

	sources    []string
	require    []string
	allowEmpty bool

	minAge         time.Duration
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
	f.StringVar(&s.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data `DIR`, which holds a folder for each network")
	f.StringArrayVar(&s.networks, "network", nil,
		"look after this `NAME` only, whether it has a folder yet or not (repeatable; without it, or with '*': all networks that have a folder, now or later)")
	f.StringArrayVar(&s.sources, "source", nil, "which pods live here, as `KIND[:ARG]` (repeatable, united; one at least): "+source.Usage())
	f.StringArrayVar(&s.require, "require-pod", nil, "refuse an answer without this pod, as `NS/NAME` (repeatable): one that surely runs here, as this agent's own")
	f.BoolVar(&s.allowEmpty, "allow-empty", false, "believe a source that reports no pod at all")
	f.DurationVar(&s.minAge, "min-age", gc.DefaultMinAge,
		"keep what is younger. It must cover an ADD in flight (kubelet allows 4m) and the age of the sources' answer together")
	f.DurationVar(&s.interval, "interval", gc.DefaultInterval, "make a pass so often, and earlier when one is worth it")
	f.DurationVar(&s.startupTimeout, "startup-timeout", gc.DefaultStartupTimeout, "wait so long for the sources at the start, with growing pauses")
	f.BoolVar(&s.dryRun, "dry-run", false, "release nothing, and take no lock: only show what leaked")
	f.StringVar(&s.listen, "listen", defaultListen, "serve HTTP at this `HOST:PORT`; --listen= serves nothing")
	f.StringArrayVar(&s.cniConf, "cni-conf", nil, "take the ranges of the picture from this conf or conflist `FILE` (repeatable)")
	f.StringVar(&s.node, "node", "", "`NAME` of this node (also $NODE_NAME)")
	f.BoolVar(&s.events, "events", false, "tell of releases and refused passes in Kubernetes Events on the node")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server (default: as a pod in the cluster does)")
	f.IntVarP(&s.verbose, "verbose", "v", 0, "log to stderr up to this `LEVEL`: 0 each release and each error, 2 also what was kept though no pod has it, 4 everything")
	nameVariables(f)
}

// check refuses what is wrong whatever the node looks like.
func (s *settings) check() error {
	if s.dataDir == "" {
		return errors.New("--data-dir is empty")
	}
	if len(s.sources) == 0 {
		return errors.New("a --source is missing: which pods live here?")
	}
	for _, name := range s.networks {
		if name == everyNetwork {
			continue
		}
		if _, err := hostlocal.New(s.dataDir, name); err != nil {
			return fmt.Errorf("--network: %w", err)
		}
	}
	if s.minAge <= 0 {
		// NoADDInFlight is the word of who serves the ADDs. This agent does not.
		return fmt.Errorf("--min-age %v: it must be more than 0, as an ADD may be in flight at any time", s.minAge)
	}
	if s.interval < time.Second {
		return fmt.Errorf("--interval %v is less than a second", s.interval)
	}
	if s.startupTimeout <= 0 {
		return fmt.Errorf("--startup-timeout %v: it must be more than 0", s.startupTimeout)
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

// wanted returns the networks that are named, and whether all others are wanted
// too.
func (s *settings) wanted() (named []string, all bool) {
	for _, name := range s.networks {
		if name == everyNetwork {
			return nil, true
		}
		if !slices.Contains(named, name) {
			named = append(named, name)
		}
	}
	return named, len(named) == 0
}

// podSource returns what answers which pods are live. What a kind of source
// needs beside its argument is given here, and nowhere else.
func (s *settings) podSource(log logr.Logger) (podsource.Source, error) {
	pods, err := source.Parse(s.sources, source.Env{Node: s.node, Kubeconfig: s.kubeconfig, Logger: log}) // a daemon has no standard input
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
	return pods, nil
}

// options are those of every Reconciler.
func (s *settings) options() gc.Options {
	return gc.Options{
		MinAge: s.minAge, Interval: s.interval, StartupTimeout: s.startupTimeout,
		DryRun: s.dryRun, AllowEmpty: s.allowEmpty,
		ReadAll: true, // for who reads the report
	}
}
