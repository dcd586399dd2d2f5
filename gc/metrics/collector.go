// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// A Collector turns the reports of one [gc.Reconciler] into metrics. It is a
// [prometheus.Collector], made by [New]. Its methods may be called from several
// goroutines.
type Collector struct {
	mu sync.Mutex // guards the fields below, so that a scrape has no part of a pass

	// The metrics. The package comment defines each. A gauge has no value before the first pass that knows it.
	all                                           []prometheus.Collector
	passes, lockHeld                              *prometheus.CounterVec
	passDuration, longestHold                     prometheus.Histogram
	lastGoodPass, missing, unreserved, duplicates *prometheus.GaugeVec
	sourceSeconds, sourceAnswers, sourceFailures  *prometheus.CounterVec // by source
	reservations                                  *prometheus.GaugeVec   // by network, verdict and reason
	rangeAddresses, rangeReserved                 *prometheus.GaugeVec   // by network and set
	released, releaseFailures                     *prometheus.CounterVec // by network
	oldestKeptLeak                                *prometheus.GaugeVec   // by network

	// networks has the networks of all reports, each with the reservations by reason of the last pass that
	// judged. Reasons of earlier passes stay, at zero.
	networks map[string]map[gc.Reason]float64
	ranges   map[string][]iprange.Set // of networks whose ranges are known
	reserved map[string][]netip.Addr  // by network, of the last pass that judged; nil before the first one
}

// New returns a Collector that has seen no pass.
func New() *Collector {
	c := &Collector{networks: make(map[string]map[gc.Reason]float64)}
	c.passes = c.counter("passes_total", "Passes, by how they ended.", "result")
	// A pass without a leak takes milliseconds. By default AtStartup ends after 30 s, and a pass of
	// Start after 11 min.
	c.passDuration = c.histogram("pass_duration_seconds", "How long passes took.", .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600)
	c.lockHeld = c.counter("lock_held_seconds_total", "Time for which passes held host-local's lock.")
	// A hold should last a few milliseconds at most (R8).
	c.longestHold = c.histogram("lock_longest_hold_seconds", "Longest single hold of host-local's lock in each pass that held it.",
		.0005, .001, .002, .005, .01, .025, .05, .1, .5, 1)
	c.lastGoodPass = c.gauge("last_good_pass_timestamp_seconds", "When the last pass without an error began, in Unix time.")
	c.missing = c.gauge("missing_networks", "Networks to release in whose directory does not exist.")
	c.unreserved = c.gauge("unreserved_addresses",
		"Addresses of live pods that no network has reserved, so that host-local may hand them out again.")
	c.duplicates = c.gauge("duplicate_addresses", "Addresses that several live pods have.")
	c.sourceSeconds = c.counter("source_seconds_total", "Time that a pod source took to answer.", "source")
	c.sourceAnswers = c.counter("source_answers_total", "Questions that a pod source answered without an error.", "source")
	c.sourceFailures = c.counter("source_failures_total", "Questions to which a pod source gave an error.", "source")
	c.reservations = c.gauge("reservations",
		"Reservations that the last pass that judged any found, by its verdict and the reason for it.", "network", "verdict", "reason")
	c.rangeAddresses = c.gauge("range_addresses", "Addresses that a range set has for containers.", "network", "set")
	c.rangeReserved = c.gauge("range_reserved_addresses",
		"Addresses of a range set that the last pass that judged any found reserved.", "network", "set")
	c.released = c.counter("released_total", "Leaked reservations that were released.", "network")
	c.releaseFailures = c.counter("release_failures_total", "Leaked reservations that could not be removed, counted in each pass.", "network")
	c.oldestKeptLeak = c.gauge("oldest_kept_leak_age_seconds",
		"Age of the oldest reservation that was kept without a live pod that holds it, 0 if there is none.", "network")
	for _, r := range results {
		c.passes.WithLabelValues(r)
	}
	c.lockHeld.WithLabelValues()
	return c
}

func (c *Collector) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	c.all = append(c.all, v)
	return v
}

func (c *Collector) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	c.all = append(c.all, v)
	return v
}

func (c *Collector) histogram(name, help string, bounds ...float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: bounds})
	c.all = append(c.all, h)
	return h
}

const prefix = "hostlocal_gc_"

// label makes a name valid UTF-8, as the value of a label must be.
func label(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// OnReport adds the report and the error of a pass. It is for [gc.Options].OnReport,
// keeps no part of the report, and never waits for a scrape. It ignores a pass that
// never began, whose report is empty.
func (c *Collector) OnReport(report gc.Report, err error) {
	if report.Started.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passes.WithLabelValues(resultOf(err)).Inc()
	if err == nil {
		c.lastGoodPass.WithLabelValues().Set(float64(report.Started.UnixNano()) / 1e9)
	}
	c.passDuration.Observe(report.Duration.Seconds())
	c.lockHeld.WithLabelValues().Add(report.LockHeld.Seconds())
	if report.LockHeld > 0 {
		c.longestHold.Observe(report.LongestHold.Seconds())
	}
	for i := range report.Sources {
		s, failed := &report.Sources[i], 0.0
		if s.Error != "" {
			failed = 1
		}
		c.sourceSeconds.WithLabelValues(label(s.Name)).Add(max(0, s.Took.Seconds()))
		c.sourceAnswers.WithLabelValues(label(s.Name)).Add(1 - failed)
		c.sourceFailures.WithLabelValues(label(s.Name)).Add(failed)
	}
	if len(report.Networks) > 0 { // else the pass did not list them
		c.missing.WithLabelValues().Set(float64(len(report.Missing)))
	}
	for _, n := range report.Networks {
		c.note(n)
	}
	// A pass that could not list the reservations, or judged none, leaves the values of earlier passes.
	if !errors.Is(err, gc.ErrRefused) && (len(report.Reservations) > 0 || err == nil) {
		c.noteReservations(&report)
	}
}

// note returns the counts of a network by reason, which begins with the first report that has it.
func (c *Collector) note(network string) map[gc.Reason]float64 {
	network = label(network)
	if c.networks[network] == nil {
		c.networks[network] = make(map[gc.Reason]float64)
		c.released.WithLabelValues(network)
		c.releaseFailures.WithLabelValues(network)
	}
	return c.networks[network]
}

// noteReservations adds the reservations of a pass that judged.
func (c *Collector) noteReservations(report *gc.Report) {
	oldest := make(map[string]time.Duration) // kept leak, by network
	c.reserved = make(map[string][]netip.Addr)
	for _, reasons := range c.networks {
		for why := range reasons {
			reasons[why] = 0
		}
	}
	for i := range report.Reservations {
		e := &report.Reservations[i]
		c.note(e.Network)[e.Reason]++
		if keptLeak(e) {
			oldest[label(e.Network)] = max(oldest[label(e.Network)], report.Started.Sub(e.ReservedAt))
		}
		if e.Verdict != gc.Released && e.Verdict != gc.Gone {
			c.reserved[e.Network] = append(c.reserved[e.Network], e.IP)
		}
	}
	for network, reasons := range c.networks {
		c.oldestKeptLeak.WithLabelValues(network).Set(oldest[network].Seconds())
		for why, n := range reasons {
			c.reservations.WithLabelValues(network, why.Verdict().String(), why.String()).Set(n)
			if why.Verdict() == gc.Released {
				c.released.WithLabelValues(network).Add(n)
			}
		}
		c.releaseFailures.WithLabelValues(network).Add(reasons[gc.ReleaseFailed])
	}
	c.countReserved()
	c.unreserved.WithLabelValues().Set(float64(c.atRisk(report)))
	c.duplicates.WithLabelValues().Set(float64(len(report.Duplicates)))
}

// keptLeak reports whether a reservation was kept although no live pod is known to hold it,
// and has a timestamp that gives its age.
func keptLeak(e *gc.Entry) bool {
	switch e.Verdict {
	case gc.Young, gc.Starting, gc.Malformed, gc.Leaked, gc.Failed:
		return e.Reason != gc.UntrustedTimestamp && e.Reason != gc.NetworkNotNamed && !e.ReservedAt.IsZero()
	}
	return false
}

// atRisk returns the number of live pods' addresses that host-local may hand out again.
func (c *Collector) atRisk(report *gc.Report) (n int) {
	var ranges iprange.Set
	for _, sets := range c.ranges {
		ranges = append(ranges, slices.Concat(sets...)...)
	}
	for _, u := range report.Unreserved {
		if u.AtRisk(ranges) {
			n++
		}
	}
	return n
}

// SetRanges sets the ranges from which the networks hand out addresses, by network name. It
// replaces those of an earlier call, and keeps the map, which must not be changed. The package
// hostlocal/cniconf reads ranges from CNI configurations. Networks without ranges, such as those
// that flannel sets at run time, have no metrics of ranges.
func (c *Collector) SetRanges(ranges map[string][]iprange.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges = ranges
	c.rangeAddresses.Reset()
	c.rangeReserved.Reset()
	for network, sets := range ranges {
		for i, set := range sets { // with the same numbers as in the configuration
			c.rangeAddresses.WithLabelValues(label(network), strconv.Itoa(i)).Set(set.Size())
		}
	}
	c.countReserved()
}

// countReserved counts the addresses of each range set that the last pass that judged found reserved.
func (c *Collector) countReserved() {
	if c.reserved == nil {
		return
	}
	for network, sets := range c.ranges {
		for i, set := range sets {
			n := 0
			for _, ip := range c.reserved[network] {
				if set.Has(ip) {
					n++
				}
			}
			c.rangeReserved.WithLabelValues(label(network), strconv.Itoa(i)).Set(float64(n))
		}
	}
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
	for _, m := range c.all {
		m.Describe(ch)
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
	metrics := make(chan prometheus.Metric)
	go func() {
		defer close(metrics)
		for _, m := range c.all {
			m.Collect(metrics)
		}
	}()
	for m := range metrics {
		value := new(dto.Metric)
		_ = m.Write(value) // a counter, a gauge or a histogram has no error
		all = append(all, reading{m, value})
	}
	return all
}

// A reading is a metric with the value that it had in a snapshot.
type reading struct {
	prometheus.Metric
	value *dto.Metric
}

// Write is of [prometheus.Metric].
func (r reading) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Gauge, out.Histogram = r.value.Label, r.value.Counter, r.value.Gauge, r.value.Histogram
	return nil
}
