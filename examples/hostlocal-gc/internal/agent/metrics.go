// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
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
