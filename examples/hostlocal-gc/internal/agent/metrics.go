// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// aboutItself returns metrics of the version and of dry run. Alerts about leaks make no sense where
// nothing is released.
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

// rangeSets reads the ranges from CNI configurations. It skips what can't be read: the page has the
// errors.
func rangeSets(files []string) map[string][]iprange.Set {
	ranges := make(map[string][]iprange.Set)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		networks, _ := cniconf.Parse(text) // it returns what it could read beside an error
		for _, n := range networks {
			ranges[n.Name] = append(ranges[n.Name], n.Ranges...)
		}
	}
	return ranges
}
