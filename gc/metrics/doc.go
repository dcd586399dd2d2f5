// SPDX-License-Identifier: Apache-2.0

// Package metrics shows the passes of package gc to Prometheus.
//
//	collector := metrics.New("podnet")
//	prometheus.MustRegister(collector)
//	r := gc.New(store, source, gc.Options{OnReport: collector.OnReport})
//
// One [Collector] serves all networks of a data dir. It keeps numbers only, and
// none of a report's addresses, containers or pods becomes a label.
//
// # Metrics
//
// All have the label network, the report's Network. Times are in seconds.
// Counters and histograms count from the process's start.
//
//   - hostlocal_gc_passes_total, a counter with the label result: passes, by how
//     they ended. "ok": without an error. "refused": the pod source gave no
//     answer that counts, so nothing was judged and nothing released (R2, R9).
//     "failed": every other error, and much may have been done all the same
//     (R11).
//   - hostlocal_gc_reservations, a gauge with the label verdict: reservations
//     that the last pass found, by what it decided or did. It has all verdicts
//     of [gc.Verdicts], those that none has too. "released" and "gone" are no
//     longer there. A pass that could not list the folder leaves it as it was.
//   - hostlocal_gc_released_total, a counter: reservations released.
//   - hostlocal_gc_release_failures_total, a counter: leaks that could not be
//     removed ([gc.ReleaseFailed]). A leak that stays counts in each pass.
//   - hostlocal_gc_pass_duration_seconds, a histogram: how long passes took,
//     however they ended.
//   - hostlocal_gc_source_seconds_total, a counter: time spent waiting for the
//     pod source's answers.
//   - hostlocal_gc_lock_held_seconds_total, a counter: time for which passes held
//     the plugin's lock.
//   - hostlocal_gc_lock_longest_hold_seconds, a histogram: the longest single
//     hold of each pass that held the lock, and so the longest that an ADD may
//     have had to wait for that pass.
//   - hostlocal_gc_last_good_pass_timestamp_seconds, a gauge: when the last pass
//     with the result "ok" began, in Unix time.
//   - hostlocal_gc_oldest_kept_leak_age_seconds, a gauge: how old the oldest
//     reservation was that the last pass kept although it found no live pod
//     that holds it; zero if there was none.
//
// The gauges appear with the first pass that knows their value. For a network
// that never had a good pass there is no timestamp to compare with: look for
// hostlocal_gc_passes_total{result="ok"} that stays at zero.
//
// # The oldest kept leak
//
// Its age is from the file's modification time to the start of the pass, by the
// node's clock. A pass that judged nothing (it was refused, or ended early)
// leaves the gauge as it was. What counts are the reservations
//
//   - that nobody holds and that are still there: a dry run's leaks, those that
//     the pass did not get to, and those that could not be removed;
//   - that may have a holder nobody has named yet: too young, or perhaps a
//     starting pod's;
//   - whose owner could not be told, or not be compared with others: malformed,
//     unreadable, or a container that may hold an address over which there is a
//     conflict, an error or a change.
//
// What a live pod claims does not count, whatever the conflict: that address is
// in use. Nor does a file that was replaced meanwhile, which is new, nor one
// whose time says no age ([gc.TimeInDoubt], or in the future).
package metrics
