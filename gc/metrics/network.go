// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A network has the sums of the reports of one network.
type network struct {
	released        uint64
	releaseFailures uint64
	reservations    map[gc.Reason]int // of the last pass that judged, with each reason of earlier ones

	judged         bool          // whether some pass has judged
	oldestKeptLeak time.Duration // of the last pass that judged
}

// begin resets the gauges for a pass that has judged the reservations.
func (n *network) begin() {
	for why := range n.reservations {
		n.reservations[why] = 0
	}
	n.judged, n.oldestKeptLeak = true, 0
}

// add counts a reservation in a pass that began at started.
func (n *network) add(e *gc.Entry, started time.Time) {
	if n.reservations == nil {
		n.reservations = make(map[gc.Reason]int)
	}
	n.reservations[e.Reason]++
	switch {
	case e.Verdict == gc.Released:
		n.released++
	case e.Reason == gc.ReleaseFailed:
		n.releaseFailures++
	}
	n.judged = true
	if keptLeak(e) {
		n.oldestKeptLeak = max(n.oldestKeptLeak, started.Sub(e.ReservedAt))
	}
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

// metrics adds the metrics of the network called name.
func (n *network) metrics(d *descs, name string, add func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	add(d.released, prometheus.CounterValue, float64(n.released), name)
	add(d.releaseFailures, prometheus.CounterValue, float64(n.releaseFailures), name)
	for why, count := range n.reservations {
		add(d.reservations, prometheus.GaugeValue, float64(count), name, why.Verdict().String(), why.String())
	}
	if n.judged {
		add(d.oldestKeptLeak, prometheus.GaugeValue, n.oldestKeptLeak.Seconds(), name)
	}
}

// of returns the element of m with that name, and makes it if there is none. The name
// becomes a label, so it is made valid UTF-8.
func of[T any](m map[string]*T, name string) *T {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if m[name] == nil {
		m[name] = new(T)
	}
	return m[name]
}
