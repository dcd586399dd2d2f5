// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
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

// answers says when each source gave its last answer.
type answers struct{ *prometheus.GaugeVec }

func newAnswers() answers {
	return answers{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "hostlocal_gc_source_last_answer_timestamp_seconds",
		Help: "When a pass last began in which the pod source gave an answer, in Unix time; 0 as long as it gave none since the agent's start.",
	}, []string{"source"})}
}

func (a answers) note(report *gc.Report) {
	for _, s := range report.Sources {
		g := a.WithLabelValues(strings.ToValidUTF8(s.Name, "\uFFFD")) // 0 where it is new
		if s.Error == "" {
			g.Set(float64(report.Started.Unix()))
		}
	}
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
