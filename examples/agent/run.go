// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/textlog"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The exit statuses.
const (
	statusDone  = 0
	statusError = 1
	statusUsage = 2
)

// endTime is how long the end may take in all. What has not ended by then ends
// with the process, which is safe at any moment (R12).
const endTime = 900 * time.Millisecond

// A failure is an error of the work. Whatever else comes back is wrong usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// run is the agent until ctx ends. Each signal on hangup asks for a pass now.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer, hangup <-chan os.Signal) int {
	var s settings
	c := &cobra.Command{
		Use:           "agent",
		Short:         "Release the IP addresses that host-local lost on this node, now and from now on",
		Long:          longHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
	}
	s.register(c.Flags())
	c.RunE = func(*cobra.Command, []string) error {
		if err := fromEnvironment(c.Flags(), lookup); err != nil {
			return err
		}
		if err := s.check(); err != nil {
			return err
		}
		a, err := newAgent(&s, stderr)
		if err != nil {
			return err
		}
		return a.run(ctx, hangup)
	}
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	var failed failure
	switch {
	case err == nil:
		return statusDone
	case errors.As(err, &failed):
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return statusError
	}
	fmt.Fprintf(stderr, "agent: %v\nSee \"agent --help\".\n", err)
	return statusUsage
}

// An agent is what runs, put together from the settings.
type agent struct {
	settings   *settings
	log        logr.Logger
	statuses   *statusStore
	reconciler *gc.Reconciler
	events     *events // nil without --events
	registry   *prometheus.Registry
}

// newAgent touches neither disk nor network, but for the kubeconfig.
func newAgent(s *settings, stderr io.Writer) (*agent, error) {
	a := &agent{settings: s, log: textlog.New(stderr, max(0, s.verbose)), statuses: newStatusStore(), registry: prometheus.NewRegistry()}
	pods, err := s.podSource(a.log)
	if err != nil {
		return nil, err
	}
	collector := metrics.New()
	a.registry.MustRegister(collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.registry.MustRegister(aboutItself(s)...)
	tell := []func(gc.Report, error){
		func(gc.Report, error) { collector.SetRanges(rangeSets(s.cniConf)) }, // a network's configuration often comes after the agent
		collector.OnReport, a.statuses.note,
	}
	if s.events {
		if a.events, err = newEvents(s, a.log); err != nil {
			return nil, failure{err}
		}
		tell = append(tell, a.events.note(a.statuses))
	}
	opts := s.options()
	opts.Logger = a.log
	opts.OnReport = func(report gc.Report, err error) {
		for _, t := range tell {
			t(report, err)
		}
	}
	a.reconciler, err = gc.New(hostlocal.New(s.dataDir), s.networks, pods, opts)
	return a, err
}

// run works until ctx ends, or something without which there is no agent.
func (a *agent) run(ctx context.Context, hangup <-chan os.Signal) error {
	l, err := a.listen(ctx)
	if err != nil {
		return failure{err}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var working sync.WaitGroup
	if l != nil {
		working.Go(func() {
			if err := a.serve(ctx, l); err != nil {
				cancel(failure{err})
			}
		})
	}
	if a.events != nil {
		a.events.start(ctx)
	}
	working.Go(func() { a.work(ctx) })
	for ctx.Err() == nil {
		select {
		case <-hangup:
			a.reconciler.Trigger()
		case <-ctx.Done():
		}
	}
	a.end(&working)
	return ended(ctx)
}

// work makes the passes until ctx ends.
func (a *agent) work(ctx context.Context) {
	a.log.Info("Releasing what leaked", "version", version(), "sources", a.settings.sources, "networks", a.settings.networks, "dataDir", a.settings.dataDir, "dryRun", a.settings.dryRun)
	// The hook has ended with the first pass that was not refused, which the
	// store sees, or by this time.
	hook := time.AfterFunc(cmp.Or(a.settings.startupTimeout, gc.DefaultStartupTimeout), a.statuses.hookEnded)
	defer hook.Stop()
	_ = a.reconciler.Start(ctx) // always nil
}

// end waits for what runs, but not for ever: a disk that hangs keeps a pass from
// ending.
func (a *agent) end(working *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		working.Wait()
	}()
	t := time.NewTimer(endTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		a.log.Info("Ended in the middle of a pass, which did not come back")
	}
}

// ended is why the agent ended, or nil where it was told to.
func ended(ctx context.Context) error {
	var failed failure
	if err := context.Cause(ctx); errors.As(err, &failed) {
		return err
	}
	return nil
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("it takes no arguments, and got %q; a network is named with --network", strings.Join(args, " "))
}
