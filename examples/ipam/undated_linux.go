// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// releaseUndated releases reservations with unusable timestamps, such as those from the future,
// once every pass has seen them unowned for the default minimum age. The library measures that
// within one process, which ends here with the ADD. So the lock's file stores when each was first
// seen, with its identity, on the clock of the boot. It returns the number of releases.
//
// What is kept for any other reason loses its note.
func (a *attempt) releaseUndated(n *note, report *gc.Report) int {
	now := sinceBoot()
	seen := make(map[string]time.Duration)
	young := make(map[string]bool) // containers with a reservation that must be kept
	due := func(e *gc.Entry) bool {
		first, ok := seen[fileOf(e.Reservation)]
		return ok && now-first >= gc.DefaultMinAge && e.Network == a.node.conf.network
	}
	for i := range report.Reservations {
		e := &report.Reservations[i]
		if e.Reason == gc.UntrustedTimestamp {
			first, ok := n.FirstSeen[fileOf(e.Reservation)]
			if !ok || first > now {
				first = now
			}
			seen[fileOf(e.Reservation)] = first
		}
		if e.Verdict != gc.Released && !due(e) {
			young[e.ContainerID] = true
		}
	}
	n.FirstSeen = seen
	var leaks []*hostlocal.Reservation
	for i := range report.Reservations {
		e := &report.Reservations[i]
		if due(e) && (e.Owner == hostlocal.Empty || !young[e.ContainerID] && !a.unproven(e.ContainerID)) {
			leaks = append(leaks, e.Reservation)
		}
	}
	released, _ := a.release(leaks, fmt.Sprintf("its timestamp is unusable, and it was first seen unowned more than %v ago", gc.DefaultMinAge))
	return released
}

// fileOf identifies a reservation's file, also for other processes.
func fileOf(r *hostlocal.Reservation) string {
	return fmt.Sprint(r.Network, " ", r.IP, " ", r.Inode(), " ", r.ReservedAt.UnixNano(), " ", r.ContainerID, " ", r.IfName)
}

// unproven reports whether a cache names a container and can't tell whether it lives (R4). The
// library looks at the age first.
func (a *attempt) unproven(containerID string) bool {
	for _, p := range a.node.cache.answer.Pods {
		if p.Unproven && slices.Contains(p.ContainerIDs, containerID) {
			return true
		}
	}
	return false
}

// release releases reservations, and logs them. It returns how many it released, and how many are
// away, which includes those that another process removed.
func (a *attempt) release(leaks []*hostlocal.Reservation, why string) (released, away int) {
	if len(leaks) == 0 {
		return 0, 0
	}
	done, err := a.node.store.Release(a.ctx, leaks...)
	if err != nil {
		a.found(err.Error())
	}
	for i, outcome := range done.Outcomes {
		switch outcome {
		case hostlocal.Released:
			released, away = released+1, away+1
			a.logReleased(leaks[i], why)
		case hostlocal.Gone:
			away++
		}
	}
	return released, away
}
