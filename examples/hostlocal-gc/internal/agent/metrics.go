// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// aboutItself are metrics that say what runs, and whether it releases anything: rules
// about leaks are no use where nothing is released.
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
	return []prometheus.Collector{build, dryRun}
}

// rangeSets reads the ranges from CNI configurations. What can't be read has none: the
// page says why.
func rangeSets(files []string) map[string][]iprange.Set {
	ranges := make(map[string][]iprange.Set)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		networks, _ := cniconf.Parse(text) // what it could read comes beside the error
		for _, n := range networks {
			ranges[n.Name] = append(ranges[n.Name], n.Ranges...)
		}
	}
	return ranges
}
