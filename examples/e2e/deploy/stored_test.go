// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// scrapeScenario returns what Prometheus has stored at the end of a scenario.
func scrapeScenario(t *testing.T, length int, at func(minute int, now time.Time) []pass, beside func(minute int) figures) storage.Queryable {
	t.Helper()
	c := metrics.New()
	c.SetRanges(map[string][]iprange.Set{"podnet": {{{First: netip.MustParseAddr("10.1.0.1"), Last: netip.MustParseAddr("10.1.0.10")}}}})
	scrape := served(t, c)
	samples := make(map[string][]chunks.Sample)
	series := make(map[string]labels.Labels)
	store := func(now time.Time, value float64, of labels.Labels) {
		series[of.String()] = of
		samples[of.String()] = append(samples[of.String()], sample{timestamp.FromTime(now), value})
	}
	for m := range length {
		now := begin.Add(time.Duration(m) * time.Minute)
		for _, p := range at(m, now) {
			c.OnReport(p.report, p.err)
		}
		also := usual
		if beside != nil {
			also = beside(m)
		}
		for name, value := range also {
			// Rules write names like this: labels of a metric in braces.
			of, err := parser.ParseMetric(name)
			if err != nil {
				t.Fatal(err)
			}
			store(now, value, of)
		}
		if also[isUp] != 1 {
			continue
		}
		for _, f := range scrape() {
			for _, m := range f.GetMetric() {
				b := labels.NewScratchBuilder(4)
				b.Add(labels.MetricName, f.GetName())
				b.Add(node, "node-1")
				for _, l := range m.GetLabel() {
					b.Add(l.GetName(), l.GetValue())
				}
				b.Sort()
				switch {
				case m.GetCounter() != nil:
					store(now, m.GetCounter().GetValue(), b.Labels())
				case m.GetGauge() != nil:
					store(now, m.GetGauge().GetValue(), b.Labels())
				}
			}
		}
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			var found []storage.Series
			for key, of := range series {
				if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(of.Get(m.Name)) }) {
					found = append(found, storage.NewListSeries(of, samples[key]))
				}
			}
			return &seriesSet{left: found}
		},
	}}
}

// fires returns the minutes in which an alert fires, evaluated each minute, as "15-60". The end is
// missing if the alert still fires when the scenario ends. Several are separated by commas.
func fires(t *testing.T, stored storage.Queryable, length int, expr string, waits time.Duration) string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{Logger: slog.New(slog.DiscardHandler), MaxSamples: 1e6, Timeout: time.Minute})
	defer func() { _ = engine.Close() }()
	query, err := engine.NewRangeQuery(t.Context(), stored, nil, expr, begin, begin.Add(time.Duration(length-1)*time.Minute), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	matrix, err := query.Exec(t.Context()).Matrix()
	if err != nil {
		t.Fatal(err)
	}
	firing := make([]bool, length)
	for _, s := range matrix {
		for i, from := 0, 0; i < len(s.Floats); i++ {
			if i > 0 && s.Floats[i].T-s.Floats[i-1].T > time.Minute.Milliseconds() {
				from = i
			}
			if s.Floats[i].T-s.Floats[from].T >= waits.Milliseconds() {
				firing[int(timestamp.Time(s.Floats[i].T).Sub(begin).Minutes())] = true
			}
		}
	}
	var spans []string
	for m, now := range firing {
		switch before := m > 0 && firing[m-1]; {
		case now && !before:
			spans = append(spans, fmt.Sprintf("%d-", m))
		case !now && before:
			spans[len(spans)-1] += strconv.Itoa(m)
		}
	}
	return strings.Join(spans, ", ")
}

// A sample is a number at a time, which is in milliseconds.
type sample struct {
	t int64
	f float64
}

func (s sample) T() int64                    { return s.t }
func (s sample) F() float64                  { return s.f }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// A seriesSet iterates over series.
type seriesSet struct {
	left []storage.Series
	at   storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.left) == 0 {
		return false
	}
	s.at, s.left = s.left[0], s.left[1:]
	return true
}

func (s *seriesSet) At() storage.Series              { return s.at }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }
