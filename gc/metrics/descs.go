// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// descs are the descriptions of the metrics. The package comment defines each.
type descs struct {
	passes          *prometheus.Desc // counter, by result
	passDuration    *prometheus.Desc // histogram, seconds
	lockHeld        *prometheus.Desc // counter, seconds
	longestHold     *prometheus.Desc // histogram, seconds
	lastGoodPass    *prometheus.Desc // gauge, seconds since 1970
	missing         *prometheus.Desc // gauge
	unreserved      *prometheus.Desc // gauge
	duplicates      *prometheus.Desc // gauge
	sourceSeconds   *prometheus.Desc // counter, seconds, by source
	sourceAnswers   *prometheus.Desc // counter, by source
	sourceFailures  *prometheus.Desc // counter, by source
	rangeAddresses  *prometheus.Desc // gauge, by network and range set
	rangeReserved   *prometheus.Desc // gauge, by network and range set
	reservations    *prometheus.Desc // gauge, by network, verdict and reason
	released        *prometheus.Desc // counter, by network, as all that follow
	releaseFailures *prometheus.Desc // counter
	oldestKeptLeak  *prometheus.Desc // gauge, seconds
}

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hostlocal_gc_"+name, help, labels, nil)
	}
	return descs{
		passes:          desc("passes_total", "Passes, by how they ended.", "result"),
		passDuration:    desc("pass_duration_seconds", "How long passes took."),
		lockHeld:        desc("lock_held_seconds_total", "Time for which passes held host-local's lock."),
		longestHold:     desc("lock_longest_hold_seconds", "Longest single hold of host-local's lock in each pass that held it."),
		lastGoodPass:    desc("last_good_pass_timestamp_seconds", "When the last pass without an error began, in Unix time."),
		missing:         desc("missing_networks", "Networks to release in whose directory does not exist."),
		unreserved:      desc("unreserved_addresses", "Addresses of live pods that no network has reserved, so that host-local may hand them out again."),
		duplicates:      desc("duplicate_addresses", "Addresses that several live pods have."),
		sourceSeconds:   desc("source_seconds_total", "Time that a pod source took to answer.", "source"),
		sourceAnswers:   desc("source_answers_total", "Questions that a pod source answered without an error.", "source"),
		sourceFailures:  desc("source_failures_total", "Questions to which a pod source gave an error.", "source"),
		rangeAddresses:  desc("range_addresses", "Addresses that a range set has for containers.", "network", "set"),
		rangeReserved:   desc("range_reserved_addresses", "Addresses of a range set that the last pass that judged any found reserved.", "network", "set"),
		reservations:    desc("reservations", "Reservations that the last pass that judged any found, by its verdict and the reason for it.", "network", "verdict", "reason"),
		released:        desc("released_total", "Leaked reservations that were released.", "network"),
		releaseFailures: desc("release_failures_total", "Leaked reservations that could not be removed, counted in each pass.", "network"),
		oldestKeptLeak:  desc("oldest_kept_leak_age_seconds", "Age of the oldest reservation that was kept without a live pod that holds it, 0 if there is none.", "network"),
	}
}

func (d *descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.passes, d.passDuration, d.lockHeld, d.longestHold, d.lastGoodPass, d.missing, d.unreserved, d.duplicates,
		d.sourceSeconds, d.sourceAnswers, d.sourceFailures, d.reservations, d.rangeAddresses, d.rangeReserved,
		d.released, d.releaseFailures, d.oldestKeptLeak,
	}
}
