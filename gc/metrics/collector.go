// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// A Collector turns the reports of one [gc.Reconciler] into metrics. It is a
// [prometheus.Collector], made by [New]. Its methods may be called from several
// goroutines.
type Collector struct {
	descs descs

	mu           sync.Mutex        // guards the fields below
	passes       map[string]uint64 // by result
	sources      map[string]*source
	networks     map[string]*network
	lockHeld     time.Duration
	passDuration histogram
	longestHold  histogram
	missing      int // negative before the first pass that knew it
	unreserved   int // of the last pass that judged
	duplicates   int // of the last pass that judged
	judged       bool
	lastGoodPass time.Time // zero before the first one

	ranges   map[string][]*rangeSet  // of networks whose ranges are known
	reserved map[string][]netip.Addr // by network, of the last pass that judged
}

// A source has the sums of the reports of one source.
type source struct {
	took              time.Duration
	answers, failures uint64
}

// New returns a Collector that has seen no pass.
func New() *Collector {
	return &Collector{
		descs: newDescs(), missing: -1,
		passes: make(map[string]uint64), sources: make(map[string]*source), networks: make(map[string]*network),
		// A pass without a leak takes milliseconds. By default AtStartup ends after
		// 30 s, and a pass of Start after 11 min.
		passDuration: newHistogram(.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600),
		// A hold should last a few milliseconds at most (R8).
		longestHold: newHistogram(.0005, .001, .002, .005, .01, .025, .05, .1, .5, 1),
	}
}

// OnReport adds the report and the error of a pass. It is for [gc.Options].OnReport,
// keeps no part of the report, and never waits for a scrape. It ignores a pass that
// never began, whose report is empty.
func (c *Collector) OnReport(report gc.Report, err error) {
	if report.Started.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passes[resultOf(err)]++
	if err == nil {
		c.lastGoodPass = report.Started
	}
	c.passDuration.observe(report.Duration)
	c.lockHeld += report.LockHeld
	if report.LockHeld > 0 {
		c.longestHold.observe(report.LongestHold)
	}
	for i := range report.Sources {
		s := of(c.sources, report.Sources[i].Name)
		s.took += report.Sources[i].Took
		if report.Sources[i].Error == "" {
			s.answers++
		} else {
			s.failures++
		}
	}
	if len(report.Networks) > 0 { // else the pass did not list them
		c.missing = len(report.Missing)
	}
	c.noteReservations(&report, err)
}

// noteReservations adds the reservations of a pass. A pass that could not list them, or
// judged none, only adds the names of its networks: the values of earlier passes stand.
func (c *Collector) noteReservations(report *gc.Report, err error) {
	for _, n := range report.Networks {
		of(c.networks, n)
	}
	if errors.Is(err, gc.ErrRefused) || len(report.Reservations) == 0 && err != nil {
		return
	}
	c.unreserved, c.duplicates, c.judged = c.atRisk(report), len(report.Duplicates), true
	c.noteReserved(report)
	for _, n := range c.networks {
		n.begin()
	}
	var n *network
	for i := range report.Reservations {
		e := &report.Reservations[i]
		if i == 0 || e.Network != report.Reservations[i-1].Network {
			n = of(c.networks, e.Network)
		}
		n.add(e, report.Started)
	}
}

// atRisk returns the number of live pods' addresses that host-local may hand out again.
func (c *Collector) atRisk(report *gc.Report) (n int) {
	var ranges iprange.Set
	for _, sets := range c.ranges {
		for _, s := range sets {
			ranges = append(ranges, s.ranges...)
		}
	}
	for _, u := range report.Unreserved {
		if u.AtRisk(ranges) {
			n++
		}
	}
	return n
}

// results are the values of the label result.
var results = []string{"ok", "refused", "no-pods", "source-timeout", "locked", "failed"}

// resultOf returns the result of a pass with this error.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, gc.ErrNoPods):
		return "no-pods"
	case errors.Is(err, gc.ErrSourceTimeout):
		return "source-timeout"
	case errors.Is(err, gc.ErrRefused):
		return "refused"
	case errors.Is(err, hostlocal.ErrLocked):
		return "locked"
	}
	return "failed"
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs.all() {
		ch <- d
	}
}

// Collect sends all metrics. Their values are consistent: no report is added in between.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	// The reader of ch may be slow, and a pass must not wait for it.
	for _, m := range c.snapshot() {
		ch <- m
	}
}

func (c *Collector) snapshot() (all []prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.descs
	add := func(desc *prometheus.Desc, t prometheus.ValueType, value float64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(desc, t, value, labels...))
	}
	for _, r := range results {
		add(d.passes, prometheus.CounterValue, float64(c.passes[r]), r)
	}
	add(d.lockHeld, prometheus.CounterValue, c.lockHeld.Seconds())
	all = append(all, c.passDuration.metric(d.passDuration), c.longestHold.metric(d.longestHold))
	for name, s := range c.sources {
		add(d.sourceSeconds, prometheus.CounterValue, s.took.Seconds(), name)
		add(d.sourceAnswers, prometheus.CounterValue, float64(s.answers), name)
		add(d.sourceFailures, prometheus.CounterValue, float64(s.failures), name)
	}
	if c.missing >= 0 {
		add(d.missing, prometheus.GaugeValue, float64(c.missing))
	}
	if c.judged {
		add(d.unreserved, prometheus.GaugeValue, float64(c.unreserved))
		add(d.duplicates, prometheus.GaugeValue, float64(c.duplicates))
	}
	if !c.lastGoodPass.IsZero() {
		add(d.lastGoodPass, prometheus.GaugeValue, float64(c.lastGoodPass.UnixNano())/1e9)
	}
	c.rangeMetrics(add)
	for name, n := range c.networks {
		n.metrics(d, name, add)
	}
	return all
}
