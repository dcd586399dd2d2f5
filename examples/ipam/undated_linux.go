// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// releaseUndated releases reservations whose timestamps say no age, as those from the
// future, once they were seen unowned in every pass for the default minimum age since
// the first. The library counts that in its own process, which ends here with the ADD,
// so when each was first seen is noted in the lock's file, with its identity, on the
// clock of the same boot. It returns how many it released.
//
// What is kept for any other reason is not in question: its note is removed.
func (a *attempt) releaseUndated(n *note, report *gc.Report) int {
	now := sinceBoot()
	seen := make(map[string]time.Duration)
	young := make(map[string]bool) // containers that have a reservation which must be kept
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
	released, _ := a.release(leaks, fmt.Sprintf("its timestamp says no age, and it was first seen unowned more than %v ago", gc.DefaultMinAge))
	return released
}

// fileOf tells a reservation's file from every other, also for another process.
func fileOf(r *hostlocal.Reservation) string {
	return fmt.Sprint(r.Network, " ", r.IP, " ", r.Identity())
}

// unproven reports whether a cache names a container and can't tell whether it lives
// (R4). The library looks at the age before.
func (a *attempt) unproven(containerID string) bool {
	for _, p := range a.node.cache.answer.Pods {
		if p.Unproven && slices.Contains(p.ContainerIDs, containerID) {
			return true
		}
	}
	return false
}

// release releases, and logs it. It returns how many it released, and with those that
// somebody else removed meanwhile how many are away.
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
