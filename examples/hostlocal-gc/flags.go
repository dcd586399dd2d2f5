// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
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

	sources    []string
	kubeconfig string
	minAge     time.Duration
	allowEmpty bool
	require    []string

	format   string
	exitCode bool
	dryRun   bool

	cniConf []string
	svg     string
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
		"look at this `NAME` only (repeatable; without it: all networks; release insists on it)")
	_ = c.RegisterFlagCompletionFunc("network", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := hostlocal.Networks(f.dataDir) // a completion has nobody to tell an error to
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// dir adds the flags that every command has.
func (f *flags) dir(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data `DIR`, which holds a folder for each network")
	c.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "give up after this time, for all networks together; 0 waits without end")
	c.Flags().IntVarP(&f.verbose, "verbose", "v", -1,
		"log to stderr up to this `LEVEL`: 0 each release, 2 also what was kept though no pod has it, 4 everything; -1 nothing but errors")
	_ = c.MarkFlagDirname("data-dir")
}

// judge adds the flags that say how reservations are judged.
func (f *flags) judge(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.sources, "source", nil,
		"which pods live here, as `KIND[:ARG]` (repeatable, united): "+source.Usage())
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"`FILE` that says how --source kube reaches the API server (default: as a pod in the cluster does)")
	c.Flags().DurationVar(&f.minAge, "min-age", gc.DefaultMinAge,
		"keep what is younger. It must cover an ADD in flight and the age of the sources' answer together; 0 is right only while no ADD can be in flight")
	c.Flags().BoolVar(&f.allowEmpty, "allow-empty", false, "believe a source that reports no pod at all")
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
	if f.minAge < 0 {
		return usagef("--min-age %v is negative", f.minAge)
	}
	for _, name := range f.networks {
		if _, err := hostlocal.New(f.dataDir, name); err != nil {
			return usageError{err}
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
	s, err := source.Parse(f.sources, source.Env{Kubeconfig: f.kubeconfig, Stdin: a.stdin, Logger: a.logger()})
	if err != nil {
		return nil, usageError{err}
	}
	a.noteStale()
	for _, text := range f.require {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, usagef("--require-pod %q is not NAMESPACE/NAME", text)
		}
		s = podsource.Require(s, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return s, nil
}

// noteStale tells of files that are older than the minimum age. Whatever was
// reserved between their writing and that age looks leaked by them.
func (a *app) noteStale() {
	for _, spec := range a.flags.sources {
		path, ok := strings.CutPrefix(spec, "file:")
		info, err := os.Stat(path)
		if !ok || err != nil || !info.Mode().IsRegular() { // an error is the source's to tell
			continue
		}
		if time.Since(info.ModTime()) > a.flags.minAge {
			a.note("%s is %s old: it can't know the pods that came since, and --min-age is %v",
				path, term.Age(time.Now(), info.ModTime()), a.flags.minAge)
		}
	}
}

// options are those of a pass.
func (a *app) options() gc.Options {
	minAge := a.flags.minAge
	if minAge == 0 {
		minAge = gc.NoADDInFlight // the zero Options mean the default
	}
	return gc.Options{MinAge: minAge, ReadAll: true, AllowEmpty: a.flags.allowEmpty, Logger: a.logger()}
}
