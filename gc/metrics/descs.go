// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// descs describe the metrics. What each means exactly, the package comment says.
type descs struct {
	passes          *prometheus.Desc // counter, by network and result
	reservations    *prometheus.Desc // gauge, by network and verdict
	released        *prometheus.Desc // counter, by network, as all that follow
	releaseFailures *prometheus.Desc // counter
	passDuration    *prometheus.Desc // histogram, seconds
	sourceSeconds   *prometheus.Desc // counter, seconds
	lockHeld        *prometheus.Desc // counter, seconds
	longestHold     *prometheus.Desc // histogram, seconds
	lastGoodPass    *prometheus.Desc // gauge, seconds since 1970
	oldestKeptLeak  *prometheus.Desc // gauge, seconds
}

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hostlocal_gc_"+name, help, append([]string{"network"}, labels...), nil)
	}
	return descs{
		passes:          desc("passes_total", "Passes, by how they ended: ok, refused (no answer of the pod source that counts), failed.", "result"),
		reservations:    desc("reservations", "Reservations that the last pass found, by its verdict.", "verdict"),
		released:        desc("released_total", "Leaked reservations that were released."),
		releaseFailures: desc("release_failures_total", "Leaked reservations that could not be removed, counted in each pass."),
		passDuration:    desc("pass_duration_seconds", "How long passes took."),
		sourceSeconds:   desc("source_seconds_total", "Time spent waiting for the pod source."),
		lockHeld:        desc("lock_held_seconds_total", "Time for which passes held host-local's lock."),
		longestHold:     desc("lock_longest_hold_seconds", "Longest single hold of host-local's lock in each pass that held it."),
		lastGoodPass:    desc("last_good_pass_timestamp_seconds", "When the last pass without an error began, in Unix time."),
		oldestKeptLeak:  desc("oldest_kept_leak_age_seconds", "Age of the oldest reservation that was kept without a live pod that holds it, 0 if there is none."),
	}
}

func (d *descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.passes, d.reservations, d.released, d.releaseFailures, d.passDuration,
		d.sourceSeconds, d.lockHeld, d.longestHold, d.lastGoodPass, d.oldestKeptLeak,
	}
}
