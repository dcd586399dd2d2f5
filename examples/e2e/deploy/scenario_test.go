// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

var errAway = errors.New("server is away")

// A pass is one that ended in a minute of a scenario.
type pass struct {
	report gc.Report
	err    error
}

// finding returns passes with this error, and with a reservation for each reason, made when the scenario began.
func finding(err error, reasons ...gc.Reason) func(int, time.Time) []pass {
	return func(_ int, now time.Time) []pass {
		r := gc.Report{Started: now, Duration: time.Second, LockHeld: time.Millisecond}
		r.Networks, r.Sources = []string{"podnet"}, []gc.SourceReport{{Name: "cri"}}
		if errors.Is(err, gc.ErrRefused) {
			r.Sources[0].Error = err.Error()
		}
		for i, why := range reasons {
			made := &hostlocal.Reservation{Network: "podnet", IP: netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)}), ReservedAt: begin}
			r.Reservations = append(r.Reservations, gc.Entry{Reservation: made, Reason: why, Verdict: why.Verdict()})
		}
		return []pass{{r, err}}
	}
}

var good = finding(nil, gc.ContainerLive, gc.ReleasedLeak)

// A scenario is what happens on a node, minute by minute: something between two minutes, and else passes are good.
type scenario struct {
	from, to int
	passes   func(m int, now time.Time) []pass // those that are due in a minute
	state    state                             // usual if zero
	length   int                               // in minutes; 4 hours if 0
	size     byte                              // of the range; 10 addresses if 0
}

// A state is that of the agent and of the cluster, as metrics have it. A negative up means that there is no target.
type state struct {
	up, dryRun, desired, ready float64
	finding                    string // its word
}

// begin is the start time of each scenario.
var begin = time.Unix(1_700_000_000, 0)

func at(m int) time.Time { return begin.Add(time.Duration(m) * time.Minute) }

// run returns what Prometheus has stored when the scenario ends.
func (s *scenario) run(t *testing.T) stored {
	t.Helper()
	c := metrics.New()
	c.SetRanges(map[string][]iprange.Set{"podnet": {{{First: netip.MustParseAddr("10.1.0.1"), Last: netip.AddrFrom4([4]byte{10, 1, 0, cmp.Or(s.size, 10)})}}}})
	// TestImage asserts that the agent has these.
	dryRun := prometheus.NewGauge(prometheus.GaugeOpts{Name: "hostlocal_gc_dry_run"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "hostlocal_gc_build_info", ConstLabels: prometheus.Labels{"version": "v1"}})
	settings := prometheus.NewGauge(prometheus.GaugeOpts{Name: "hostlocal_gc_configuration_info",
		ConstLabels: prometheus.Labels{"networks": "podnet", "sources": "cri", "hash": "c0ffee"}})
	findings := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "hostlocal_gc_findings"}, []string{"word", "network"})
	registry := prometheus.NewPedanticRegistry()
	leaks := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hostlocal_gc_leaks_total"}, []string{"network", "cause"})
	registry.MustRegister(c, dryRun, build, settings, findings, leaks)
	all := make(stored)
	for m := range s.length {
		state, passes := state{up: 1, desired: 1, ready: 1}, good(m, at(m))
		if m >= s.from && m < s.to {
			state, passes = cmp.Or(s.state, state), s.passes(m, at(m))
		}
		due := m%11 == 0 // the longest interval that jitter makes of 10 minutes
		if n := m - s.from; len(passes) > 0 && passes[len(passes)-1].err != nil {
			due = slices.Contains([]int{0, 1, 2, 4, 8, 16}, n) || n > 16 && (n-16)%11 == 0
		}
		for _, p := range slices.Repeat(passes, map[bool]int{true: 1}[due]) {
			c.OnReport(p.report, p.err)
		}
		all.add(m, state.desired, "__name__", "kube_daemonset_status_desired_number_scheduled", "daemonset", "hostlocal-gc")
		all.add(m, state.ready, "__name__", "kube_daemonset_status_number_ready", "daemonset", "hostlocal-gc")
		if state.up >= 0 {
			all.add(m, state.up, "__name__", "up", "instance", "node-1", "job", "hostlocal-gc")
		}
		if state.up != 1 {
			continue
		}
		dryRun.Set(state.dryRun)
		for _, f := range [][]string{{"READ-ONLY", ""}, {"MISSING", "podnet"}, {"CONFIG", "podnet"}} {
			findings.WithLabelValues(f...).Set(map[bool]float64{true: 1}[f[0] == state.finding])
		}
		leaks.WithLabelValues("podnet", "reboot").Inc()
		families, err := registry.Gather()
		samples, err2 := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, families...)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		for _, sample := range samples {
			of := []string{"instance", "node-1"}
			for name, value := range sample.Metric {
				of = append(of, string(name), string(value))
			}
			all.add(m, float64(sample.Value), of...)
		}
	}
	return all
}

// stored are the series that Prometheus has stored, by their labels.
type stored map[string]promql.Series

func (s stored) add(m int, value float64, pairs ...string) {
	of := labels.FromStrings(pairs...)
	s[of.String()] = promql.Series{Metric: of, Floats: append(s[of.String()].Floats, promql.FPoint{T: at(m).UnixMilli(), F: value})}
}

// query evaluates an expression at each minute. The result must have the labels.
func (s stored) query(t *testing.T, expr string, from, to int, labelled ...string) promql.Matrix {
	t.Helper()
	querier := &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, by ...*labels.Matcher) storage.SeriesSet {
		found := &seriesSet{SeriesSet: storage.EmptySeriesSet()}
		for _, series := range s {
			if !slices.ContainsFunc(by, func(m *labels.Matcher) bool { return !m.Matches(series.Metric.Get(m.Name)) }) {
				found.series = append(found.series, series)
			}
		}
		return found
	}}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	q, err := engine.NewRangeQuery(t.Context(), &storage.MockQueryable{MockQuerier: querier}, nil, expr, at(from), at(to), time.Minute)
	var matrix promql.Matrix
	if err == nil {
		matrix, err = q.Exec(t.Context()).Matrix()
	}
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	for _, series := range matrix {
		if slices.ContainsFunc(labelled, func(l string) bool { return !series.Metric.Has(l) }) {
			t.Errorf("%s does not have all labels %q: %s", expr, labelled, series.Metric)
		}
	}
	return matrix
}

// A seriesSet iterates over series, without errors or warnings.
type seriesSet struct {
	storage.SeriesSet
	series []promql.Series
	read   int
}

func (s *seriesSet) Next() bool         { s.read++; return s.read <= len(s.series) }
func (s *seriesSet) At() storage.Series { return promql.NewStorageSeries(s.series[s.read-1]) }
