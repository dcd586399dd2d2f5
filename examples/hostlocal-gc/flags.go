// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// flags are the values of all flags. Each command has only those that mean
// something to it.
type flags struct {
	dataDir  string
	networks []string
	timeout  time.Duration
	verbose  int

	sources        []string
	kubeconfig     string
	minAge         minAge
	requestTimeout time.Duration
	foreign        []string
	allowEmpty     bool
	require        []string

	format   string
	exitCode bool
	dryRun   bool

	cniConf []string
	svg     string

	ips  []string
	from string

	cniDir string
	ranges []string
}

const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
)

func formats() []string { return []string{formatTable, formatWide, formatJSON} }

// data adds the flags that say what is looked at.
func (f *flags) data(c *cobra.Command) {
	f.dir(c)
	c.Flags().StringArrayVar(&f.networks, "network", nil,
		"show, and with release: release in, the network of this `NAME` only (repeatable; without it all networks are shown; release insists on it)")
	_ = c.RegisterFlagCompletionFunc("network", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := hostlocal.New(f.dataDir).Networks() // a completion has nobody to tell an error to
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// dir adds the flags that every command has.
func (f *flags) dir(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data `DIR`, which holds a directory for each network")
	c.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "give up after this time; 0 waits for a day")
	c.Flags().IntVarP(&f.verbose, "verbose", "v", -1,
		"log to stderr up to this `LEVEL`: 0 each release, 2 also what was kept though no pod has it, 4 everything; -1 nothing but errors")
	_ = c.MarkFlagDirname("data-dir")
}

// judge adds the flags that say how reservations are judged.
func (f *flags) judge(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.sources, "source", nil,
		"which pods live here, as `KIND[:ARG]` (repeatable, united): "+strings.Join(source.Forms(), ", ")+"; see help sources")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"`FILE` that says how --source kube reaches the API server (default: as a pod in the cluster does)")
	c.Flags().Var(&f.minAge, "min-age",
		"keep what is younger than this `AGE`, at least 1s (default "+short(gc.DefaultMinAge)+", or what --runtime-request-timeout asks for). "+
			"Less than the default counts only where the sources see every ADD under way, every address and every attachment")
	c.Flags().DurationVar(&f.requestTimeout, "runtime-request-timeout", gc.DefaultRuntimeRequestTimeout,
		"kubelet's runtimeRequestTimeout on this node: an ADD may take twice as long")
	c.Flags().StringArrayVar(&f.foreign, "foreign", nil,
		"judge also what containers hold that no source here could know, by their IDs: `PREFIX` and 64 hex digits, or \"any\" (repeatable). It is for containers that surely do not live any more")
	c.Flags().BoolVar(&f.allowEmpty, "allow-empty", false, "believe sources that report no pod at all")
	c.Flags().StringArrayVar(&f.require, "require-pod", nil,
		"refuse an answer without this pod, as `NS/NAME` (repeatable): one that surely runs here")
	_ = c.MarkFlagFilename("kubeconfig")
	_ = c.RegisterFlagCompletionFunc("source", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return source.Completions(), cobra.ShellCompDirectiveNoSpace
	})
}

func (f *flags) output(c *cobra.Command) {
	c.Flags().StringVarP(&f.format, "output", "o", formatTable, "`FORMAT`: "+strings.Join(formats(), ", "))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
}

func (f *flags) exit(c *cobra.Command) {
	c.Flags().BoolVar(&f.exitCode, "exit-code", false, "exit with 3 when something is leaked (of a plan, or with --dry-run)")
}

// check refuses what is wrong whatever the node looks like.
func (f *flags) check() error {
	if !slices.Contains(formats(), f.format) {
		return usagef("there is no output format %q; wanted is %s", f.format, strings.Join(formats(), ", "))
	}
	if f.dataDir == "" {
		return usagef("--data-dir is empty")
	}
	if f.timeout < 0 {
		return usagef("--timeout %v is negative", f.timeout)
	}
	for _, name := range f.networks {
		if !hostlocal.ValidNetwork(name) {
			return usagef("--network %q is not the name of a network", name)
		}
	}
	for _, prefix := range f.foreign {
		if prefix == "" {
			return usagef("--foreign is empty")
		}
	}
	return nil
}

// source returns the source that the flags ask for, or nil when they ask for
// none.
func (a *app) source() (podsource.Source, error) {
	f := &a.flags
	if len(f.sources) == 0 {
		if f.allowEmpty || len(f.require) > 0 {
			return nil, usagef("--allow-empty and --require-pod speak of a --source, and there is none")
		}
		return nil, nil
	}
	s, err := source.Parse(f.sources, source.Env{Kubeconfig: f.kubeconfig, Stdin: a.stdin, Logger: a.logger(),
		LongestADD: source.LongestADD(f.requestTimeout)})
	if err != nil {
		return nil, usageError{err}
	}
	if f.allowEmpty {
		s = podsource.AllowEmpty(s)
	}
	for _, text := range f.require {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, usagef("--require-pod %q is not NAMESPACE/NAME", text)
		}
		s = podsource.Require(s, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return s, nil
}

// options are those of a pass.
func (a *app) options() gc.Options {
	f := &a.flags
	opts := gc.Options{
		MinAge: time.Duration(f.minAge), RuntimeRequestTimeout: f.requestTimeout,
		SourceTimeout: f.timeout, // one question may take as long as the whole
		Logger:        a.logger(),
	}
	if f.timeout == 0 {
		opts.SourceTimeout = 24 * time.Hour // the most that there is
	}
	for _, prefix := range f.foreign {
		form := podsource.Form(prefix) + podsource.Hex64
		if prefix == "any" {
			form = podsource.AnyForm
		}
		opts.ReleaseForms = append(opts.ReleaseForms, form)
	}
	return opts
}

// minAge is the value of --min-age. Zero is that the flag was not given: the
// default then follows from another flag.
type minAge time.Duration

func (m *minAge) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil && d < time.Second {
		err = errors.New("it must be at least 1s")
	}
	*m = minAge(d)
	return err
}

func (m *minAge) String() string {
	if *m == 0 {
		return "" // the help says what the default is
	}
	return short(time.Duration(*m))
}

func (m *minAge) Type() string { return "duration" }

// short writes a duration without the units that are zero: "7m".
func short(d time.Duration) string { return term.Age(time.Time{}.Add(d+1), time.Time{}.Add(1)) }
