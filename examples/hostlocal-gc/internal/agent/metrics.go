// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
)

// register makes the metrics: those of passes, of the process, of the agent's settings, and of what
// diagnose says. Alerts about leaks make no sense where nothing is released.
func (a *Agent) register() {
	o := &a.opts
	dryRun := 0.0
	if o.Passes.DryRun {
		dryRun = 1
	}
	a.registry, a.passes = prometheus.NewRegistry(), metrics.New()
	a.leaks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostlocal_gc_leaks_total",
		// In the pass that released it or, if it stays, in the first one that found it.
		Help: "Reservations found leaked, each once, by why they leaked as far as the node shows it.",
	}, []string{"network", "cause"})
	a.findings = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "hostlocal_gc_findings",
		Help: "What a person should look at, by the word of hostlocal-gc check: the number of items listed " +
			"(addresses, namespaces, errors), or 1 for a finding that lists none.",
	}, []string{"word", "network"})
	a.registry.MustRegister(a.passes, a.leaks, a.findings,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		constant("hostlocal_gc_build_info", "The agent's version, and that of Go that built it.", 1,
			prometheus.Labels{"version": o.Version, "goversion": runtime.Version()}),
		constant("hostlocal_gc_dry_run", "1 where the agent releases nothing, and else 0.", dryRun, nil),
		constant("hostlocal_gc_configuration_info",
			"The agent's networks and sources, and a hash of all settings that should be equal on all nodes.", 1,
			prometheus.Labels{
				"networks": strings.Join(o.Networks, " "), "sources": strings.Join(o.SourceNames, " "), "hash": o.Configuration,
			}))
}

func constant(name, help string, value float64, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(value)
	return g
}

// explain returns the causes of the leaks. It counts those that this pass is the first to find, and logs the causes that
// are known in a line for each network and cause.
func (a *Agent) explain(report *gc.Report, known diagnose.Causes) diagnose.Causes {
	causes, found := a.inquiry.Find(context.Background(), report, known)
	for _, network := range report.Networks {
		for _, cause := range diagnose.AllCauses() {
			var ips []string
			for _, e := range found {
				if e.Network == network && causes.Of(e) == cause {
					ips = append(ips, e.IP.String())
				}
			}
			a.leaks.WithLabelValues(network, string(cause)).Add(float64(len(ips))) // also none, so that an increase is seen
			if len(ips) > 0 && cause.Known() {
				a.opts.Passes.Logger.Info("Found why addresses leaked", "network", network, "cause", cause, "count", len(ips),
					"IPs", ips[:min(len(ips), maxLogged)])
			}
		}
	}
	return causes
}
