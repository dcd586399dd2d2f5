// SPDX-License-Identifier: Apache-2.0

// Package agent implements the agent command. It makes passes from its start on, and reports them
// as metrics, as JSON and as a web page.
//
// Start reading at Agent.Run. status.go stores what the passes report, and serve.go serves it.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// endTime limits the time to stop. What still runs then ends with the process, which is safe at any
// time (R12).
const endTime = 900 * time.Millisecond

// maxLogged is the largest number of addresses in a log line.
const maxLogged = 64

// Options configure an Agent.
type Options struct {
	// Version is reported by build_info and by the first line of the log.
	Version string
	// Configuration is a hash of all settings that should be equal on all nodes.
	Configuration string
	// DataDir is host-local's data directory. Networks are those to release in.
	DataDir  string
	Networks []string
	// Source lists the live pods. SourceNames are the user's names for its parts.
	Source      podsource.Source
	SourceNames []string
	// Passes are the options of the passes. The agent uses its Logger, too. OnReport is ignored.
	Passes gc.Options
	// Listen is the HOST:PORT of all endpoints, MetricsListen that of the endpoints that name no
	// pod. Empty means none.
	Listen, MetricsListen string
	// CNIConf are the CNI configurations with the ranges. They are read again for each pass.
	CNIConf []string
	// Node is the node's name, for the page.
	Node string
}

// An Agent makes passes and serves their reports.
type Agent struct {
	opts       Options
	reconciler *gc.Reconciler
	inquiry    *diagnose.Inquiry
	look       func(*diagnose.Place) // (*diagnose.Place).Look, which reads the disk
	looking    diagnose.Guard
	started    time.Time
	last       atomic.Pointer[status] // replaced by passes only, one at a time
	hookOver   atomic.Bool            // the hook at the start has ended, well or not; never reset

	logged []string // the findings that were logged last, by passes

	registry *prometheus.Registry
	passes   *metrics.Collector
	findings *prometheus.GaugeVec
	leaks    *prometheus.CounterVec
}

// New touches neither disk nor network. Its errors concern the options.
func New(opts Options) (*Agent, error) {
	a := withoutPasses(opts)
	opts.Passes.OnReport = func(report gc.Report, err error) {
		causes := a.last.Load().causes
		if hasJudged(&report, err) {
			causes = a.explain(&report, causes)
		}
		a.note(report, err, causes)
		a.log(&report)
		if report.Looks == 0 && !a.last.Load().ready { // a hook that finds nothing reserved asks no source
			a.reconciler.Trigger()
		}
	}
	var err error
	a.reconciler, err = gc.New(hostlocal.New(opts.DataDir), opts.Networks, opts.Source, opts.Passes)
	return a, err
}

func withoutPasses(opts Options) *Agent {
	opts.Passes, _ = opts.Passes.WithDefaults() // an error is that of the reconciler
	a := &Agent{opts: opts, inquiry: diagnose.NewInquiry(opts.SourceNames), look: (*diagnose.Place).Look, started: time.Now()}
	a.last.Store(&status{ended: a.started})
	a.register()
	return a
}

// Run works until ctx ends, and then returns nil within a second, also in the middle of a pass. It
// returns an error if it can't serve. Each value on hangup triggers a pass, which begins five seconds
// after the last one at the earliest.
func (a *Agent) Run(ctx context.Context, hangup <-chan os.Signal) error {
	servers, err := a.listen(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var working sync.WaitGroup
	for _, s := range servers {
		working.Go(func() {
			if err := s.serve(ctx); err != nil {
				cancel(err)
			}
		})
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
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (a *Agent) work(ctx context.Context) {
	o := &a.opts
	o.Passes.Logger.Info("Releasing what leaked", "version", o.Version, "sources", o.SourceNames, "networks", o.Networks,
		"dataDir", o.DataDir, "minAge", o.Passes.MinAge.String(), "dryRun", o.Passes.DryRun)
	// The hook ends with the first pass that was not refused, or at this time.
	hook := time.AfterFunc(o.Passes.StartupTimeout, a.hookEnded)
	defer hook.Stop()
	_ = a.reconciler.Start(ctx) // always nil
}

// hookEnded ends the hook. It logs if no pass has ended yet: a pass that hangs logs nothing.
func (a *Agent) hookEnded() {
	a.hookOver.Store(true)
	if s := a.last.Load(); s.passes == 0 {
		a.logFindings(lines(a.ofAgent(s, time.Now())))
	}
}

// log adds to the library's line for each pass what a dry run would have released, and the findings
// when they change. It waits for the end of the hook: when a node starts, sources become available
// one after the other.
func (a *Agent) log(report *gc.Report) {
	var leaked []string
	for e := range diagnose.Entries(report) {
		if e.Verdict == gc.Leaked && e.Reason != gc.NetworkNotNamed {
			leaked = append(leaked, e.Network+"/"+e.IP.String())
		}
	}
	if n := len(leaked); a.opts.Passes.DryRun && n > 0 {
		if n > maxLogged {
			leaked = append(leaked[:maxLogged], fmt.Sprintf("and %d more", n-maxLogged))
		}
		a.opts.Passes.Logger.Info("Would have released, but this is a dry run", "count", n, "IPs", leaked)
	}
	if !a.hookOver.Load() {
		return
	}
	found := lines(a.last.Load().found)
	if len(found) > 0 && !slices.Equal(found, a.logged) {
		a.logFindings(found)
	}
	a.logged = found
}

func (a *Agent) logFindings(lines []string) {
	a.opts.Passes.Logger.Info("A person should look at this node", "findings", strings.Join(lines, "; "))
}

func lines(findings []diagnose.Finding) (all []string) {
	for _, f := range findings {
		all = append(all, f.Line())
	}
	return all
}

// end waits for the goroutines, up to endTime: a disk that hangs keeps a pass from ending.
func (a *Agent) end(working *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		working.Wait()
	}()
	select {
	case <-done:
	case <-time.After(endTime):
	}
	a.opts.Passes.Logger.Info("Ended")
}
