// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

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
