// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// aboutItself returns metrics of the version, of the settings and of dry run. Alerts about leaks make no
// sense where nothing is released.
func aboutItself(o *Options) []prometheus.Collector {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "hostlocal_gc_build_info", Help: "The agent's version, and that of Go that built it.",
		ConstLabels: prometheus.Labels{"version": o.Version, "goversion": runtime.Version()},
	})
	build.Set(1)
	dryRun := prometheus.NewGauge(prometheus.GaugeOpts{Name: "hostlocal_gc_dry_run", Help: "1 where the agent releases nothing, and else 0."})
	if o.Passes.DryRun {
		dryRun.Set(1)
	}
	configuration := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "hostlocal_gc_configuration_info",
		Help: "The agent's networks and sources, and a hash of all settings that should be equal on all nodes.",
		ConstLabels: prometheus.Labels{
			"networks": strings.Join(o.Networks, " "), "sources": strings.Join(o.SourceNames, " "), "hash": o.Configuration,
		},
	})
	configuration.Set(1)
	return []prometheus.Collector{build, dryRun, configuration}
}

// newLeaks returns the metric of causes. A leak counts once: in the pass that released it or, if it
// stays, in the first one that found it.
func newLeaks() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hostlocal_gc_leaks_total", Help: "Reservations found leaked, each once, by why they leaked as far as the node shows it.",
	}, []string{"network", "cause"})
}

// newFindings returns the metric of findings.
func newFindings() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "hostlocal_gc_findings", Help: "What a person should look at, by the word of hostlocal-gc check: the number of items listed (addresses, namespaces, errors), or 1 for a finding that lists none.",
	}, []string{"word", "network"})
}

// explain finds the causes of what this pass is the first to find leaked. It counts each, and logs
// those that are known in a line for each network and cause.
func (a *Agent) explain(report *gc.Report, count *prometheus.CounterVec) {
	causes, found := a.inquiry.Find(context.Background(), report, a.statuses.get().causes)
	a.statuses.setCauses(causes)
	for _, network := range report.Networks {
		for _, cause := range diagnose.AllCauses() { // so that an increase is seen
			count.WithLabelValues(network, string(cause))
		}
	}
	type kind struct {
		network string
		cause   diagnose.Cause
	}
	of := make(map[kind][]string)
	for _, e := range found {
		k := kind{e.Network, causes.Of(e)}
		count.WithLabelValues(k.network, string(k.cause)).Inc()
		of[k] = append(of[k], e.IP.String())
	}
	for k, ips := range of {
		if k.cause.Known() {
			a.opts.Passes.Logger.Info("Found why addresses leaked", "network", k.network, "cause", k.cause, "count", len(ips),
				"IPs", ips[:min(len(ips), maxLogged)])
		}
	}
}

// setCauses stores the causes.
func (s *statusStore) setCauses(causes diagnose.Causes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.causes = causes
}
