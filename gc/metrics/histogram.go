// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A histogram counts durations by size.
type histogram struct {
	bounds  []float64 // in seconds, rising
	buckets []uint64  // how many durations are at most each bound
	count   uint64
	sum     time.Duration
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, buckets: make([]uint64, len(bounds))}
}

func (h *histogram) observe(d time.Duration) {
	h.count++
	h.sum += d
	for i, bound := range h.bounds {
		if d.Seconds() <= bound {
			h.buckets[i]++
		}
	}
}

// metric returns the counts as a metric. It shares no memory with h.
func (h *histogram) metric(desc *prometheus.Desc, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.bounds))
	for i, bound := range h.bounds {
		buckets[bound] = h.buckets[i]
	}
	return prometheus.MustNewConstHistogram(desc, h.count, h.sum.Seconds(), buckets, labels...)
}
