// SPDX-License-Identifier: Apache-2.0

package deploytest

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

var (
	errAway    = errors.New("server is away")
	errRefused = fmt.Errorf("%w: %w", gc.ErrRefused, errAway)
	errNoPods  = fmt.Errorf("%w: %w", gc.ErrRefused, gc.ErrNoPods)
)

// node is the label that the monitor gives to every series.
const node = "instance"

// served returns a function that returns what Prometheus would be given now.
func served(t *testing.T, c *metrics.Collector) func() []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	return func() []*dto.MetricFamily {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return families
	}
}

// report is that of a pass that took a second, with an entry for each reason.
func report(started time.Time, reasons ...gc.Reason) gc.Report {
	r := gc.Report{
		Networks: []gc.Network{{Name: "podnet"}}, Started: started, Duration: time.Second,
		Sources: []gc.SourceReport{{Name: "cri", Entries: 3}},
	}
	for _, why := range reasons {
		r.Reservations = append(r.Reservations, entry(started, why, time.Minute))
	}
	return r
}

// entry is a reservation that was made so long before the pass.
func entry(started time.Time, why gc.Reason, age time.Duration) gc.Entry {
	made := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr("10.0.0.2"), ContainerID: "abc", ReservedAt: started.Add(-age)}
	return gc.Entry{Reservation: made, Reason: why, Verdict: why.Verdict()}
}

// exposed are the metrics that the library has, as a scrape shows them: for each
// name its labels, and all values of each that occur.
func exposed(t *testing.T) map[string]map[string]map[string]bool {
	t.Helper()
	var reasons []gc.Reason
	for why := gc.Reason(0); why.Rule() != ""; why++ {
		reasons = append(reasons, why)
	}
	now := time.Unix(1_700_000_000, 0)
	c := metrics.New()
	c.SetRanges(map[string][]metrics.RangeSet{"podnet": {{{First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr("10.0.0.10")}}}})
	released := report(now, gc.ReleasedLeak, gc.TooYoung)
	released.LockHeld, released.LongestHold = time.Millisecond, time.Millisecond
	c.OnReport(released, nil)
	c.OnReport(report(now, reasons...), errAway)

	all := make(map[string]map[string]map[string]bool)
	add := func(name string, pairs []*dto.LabelPair, more ...string) {
		labels := all[name]
		if labels == nil {
			labels = map[string]map[string]bool{node: {}}
			all[name] = labels
		}
		for _, l := range pairs {
			if labels[l.GetName()] == nil {
				labels[l.GetName()] = make(map[string]bool)
			}
			labels[l.GetName()][l.GetValue()] = true
		}
		for _, name := range more {
			labels[name] = make(map[string]bool)
		}
	}
	for _, f := range served(t, c)() {
		for _, m := range f.GetMetric() {
			if f.GetType() != dto.MetricType_HISTOGRAM {
				add(f.GetName(), m.GetLabel())
				continue
			}
			add(f.GetName()+"_bucket", m.GetLabel(), "le")
			add(f.GetName()+"_sum", m.GetLabel())
			add(f.GetName()+"_count", m.GetLabel())
		}
	}
	return all
}
