// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A network is what the reports of one network add up to.
type network struct {
	passes          [results]uint64
	released        uint64
	releaseFailures uint64
	sourceTime      time.Duration
	lockHeld        time.Duration
	passDuration    histogram
	longestHold     histogram

	// Of the last pass that knew: nil, negative and zero as long as none did.
	reservations   map[gc.Verdict]int
	oldestKeptLeak time.Duration
	lastGoodPass   time.Time
}

func newNetwork() *network {
	return &network{
		// A pass without a leak takes milliseconds. AtStartup ends after 30 s and
		// a pass of Start after 10 min, if nothing else was asked for.
		passDuration: newHistogram(.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600),
		// A hold is to last no longer than a few milliseconds (R8).
		longestHold:    newHistogram(.0005, .001, .002, .005, .01, .025, .05, .1, .5, 1),
		oldestKeptLeak: -1,
	}
}

// note adds a pass.
func (n *network) note(report *gc.Report, err error) {
	ended := resultOf(report, err)
	n.passes[ended]++
	if ended == ok {
		n.lastGoodPass = report.Started
	}
	n.sourceTime += report.SourceDuration
	n.lockHeld += report.LockHeld
	n.passDuration.observe(report.Duration)
	if report.LockHeld > 0 {
		n.longestHold.observe(report.LongestHold)
	}
	for i := range report.Reservations {
		switch e := &report.Reservations[i]; {
		case e.Verdict == gc.Released:
			n.released++
		case e.Reason == gc.ReleaseFailed:
			n.releaseFailures++
		}
	}
	if listed(report, err) {
		n.reservations = report.Counts()
		if age, known := oldestKeptLeak(report); known {
			n.oldestKeptLeak = age
		}
	}
}

// metrics returns what is known of the network called name.
func (n *network) metrics(d *descs, name string) (all []prometheus.Metric) {
	add := func(desc *prometheus.Desc, t prometheus.ValueType, value float64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(desc, t, value, append([]string{name}, labels...)...))
	}
	for r, passes := range n.passes {
		add(d.passes, prometheus.CounterValue, float64(passes), result(r).String())
	}
	add(d.released, prometheus.CounterValue, float64(n.released))
	add(d.releaseFailures, prometheus.CounterValue, float64(n.releaseFailures))
	add(d.sourceSeconds, prometheus.CounterValue, n.sourceTime.Seconds())
	add(d.lockHeld, prometheus.CounterValue, n.lockHeld.Seconds())
	all = append(all, n.passDuration.metric(d.passDuration, name), n.longestHold.metric(d.longestHold, name))

	if n.reservations != nil {
		for _, v := range gc.Verdicts() {
			add(d.reservations, prometheus.GaugeValue, float64(n.reservations[v]), v.String())
		}
	}
	if n.oldestKeptLeak >= 0 {
		add(d.oldestKeptLeak, prometheus.GaugeValue, n.oldestKeptLeak.Seconds())
	}
	if !n.lastGoodPass.IsZero() {
		add(d.lastGoodPass, prometheus.GaugeValue, float64(n.lastGoodPass.UnixNano())/1e9)
	}
	return all
}
