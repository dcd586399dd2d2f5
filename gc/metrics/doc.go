// SPDX-License-Identifier: Apache-2.0

// Package metrics exposes the passes of package gc as Prometheus metrics.
//
//	collector := metrics.New()
//	prometheus.MustRegister(collector)
//	r, err := gc.New(store, networks, source, gc.Options{OnReport: collector.OnReport})
//
// A [Collector] serves one [gc.Reconciler], and so all networks of a data directory. A
// process with several data directories needs a Collector for each, registered with an
// additional label ([prometheus.WrapRegistererWith]).
//
// Labels are names of networks and of sources, and the words of verdicts and reasons, which
// are stable. No address, container or pod is a label.
//
// # Metrics of passes
//
// Times are in seconds. Counters and histograms count from the process's start.
//
//   - hostlocal_gc_passes_total, a counter with the label result: passes, by how
//     they ended. "ok": without an error. "refused": a source failed or its
//     answer is too old; "no-pods": a source reports no pod at all
//     ([gc.ErrNoPods]); "source-timeout": no answer in time
//     ([gc.ErrSourceTimeout]). After these three nothing was judged and nothing
//     released (R2, R9). "locked": host-local's lock could not be taken
//     ([hostlocal.ErrLocked]). "failed": every other error. After these two,
//     reservations may have been released all the same (R11).
//   - hostlocal_gc_pass_duration_seconds, a histogram: how long passes took,
//     however they ended.
//   - hostlocal_gc_lock_held_seconds_total, a counter: time for which passes held
//     the plugin's lock.
//   - hostlocal_gc_lock_longest_hold_seconds, a histogram: the longest single
//     hold of each pass that held the lock, and so the longest that an ADD may
//     have had to wait for that pass.
//   - hostlocal_gc_last_good_pass_timestamp_seconds, a gauge: when the last pass
//     with the result "ok" began, in Unix time.
//   - hostlocal_gc_missing_networks, a gauge: how many of the networks to release
//     in have no directory: all of them if the data directory is missing.
//     Nothing was ever reserved in them on this node, or a name or the data
//     directory is wrong.
//   - hostlocal_gc_unreserved_addresses, a gauge: addresses of live pods that are
//     reserved in no network of the data directory, so that host-local may hand
//     them out again ([gc.Claim.AtRisk]): those in the ranges that were set, or,
//     without ranges, those of pods with a name.
//   - hostlocal_gc_duplicate_addresses, a gauge: addresses that several live pods
//     have (R10).
//
// # Metrics of sources
//
// These have the label source, the name in [gc.SourceReport]. If a pass called the sources
// twice, the second answer counts.
//
//   - hostlocal_gc_source_seconds_total, a counter: time that the source took to
//     answer.
//   - hostlocal_gc_source_answers_total, a counter: calls that returned an answer,
//     also one that was refused. A source at zero has not answered since the process
//     started: its socket, its account or its name is wrong.
//   - hostlocal_gc_source_failures_total, a counter: calls that returned an error. An
//     answer that was refused is only in passes_total, and so is one that did not come
//     in time.
//
// # Metrics of reservations
//
// These have the label network. There are series for every network of the data directory,
// also for those that are only read.
//
//   - hostlocal_gc_reservations, a gauge with the labels verdict and reason:
//     reservations by the verdict and the reason of the last pass.
//     Each reason belongs to one verdict. Its series begins with the first pass
//     that gives it, and is zero after passes that do not. Reservations that are
//     "released" or "gone" no longer exist.
//   - hostlocal_gc_range_addresses, a gauge with the label set, the number of a range
//     set in the configuration: how many addresses it has for containers. It is there
//     for networks whose ranges were set ([Collector.SetRanges]).
//   - hostlocal_gc_range_reserved_addresses, a gauge with the same labels: how many of
//     them are reserved. The network is full if the two are equal.
//   - hostlocal_gc_released_total, a counter: reservations released.
//   - hostlocal_gc_release_failures_total, a counter: leaks that could not be
//     removed ([gc.ReleaseFailed]). A leak that is not removed counts in each pass.
//   - hostlocal_gc_oldest_kept_leak_age_seconds, a gauge: how old the oldest
//     reservation was that the last pass kept although it found no live pod
//     that holds it; zero if there was none.
//
// A gauge appears with the first pass that knows its value. A pass that was refused, or that
// could not list the reservations, does not change it, so a source that fails once does not
// clear a conflict. Before the first pass without an error there is no timestamp; alert on
// hostlocal_gc_passes_total{result="ok"} at zero.
//
// # The oldest kept leak
//
// Its age is from the file's modification time to the start of the pass, by the
// node's clock. These reservations count:
//
//   - leaks that still exist: those of a dry run, those that the pass did not get
//     to, and those that could not be removed;
//   - those whose holder may not be named yet: too young, or perhaps that of a
//     starting pod;
//   - those whose owner is unknown: malformed, unreadable, or perhaps a sibling
//     of an unreadable one.
//
// Conflicts and foreign owners do not count, because as far as is known they have
// a holder. Neither do leaks in networks that are only read, files that were
// replaced during the pass, which are new, and files whose time gives no age
// ([gc.UntrustedTimestamp], or a time in the future).
package metrics
