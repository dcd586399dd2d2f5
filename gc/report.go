// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Report says what one pass found and did. It is true also when an error comes
// with it (R11): what is not Released in it was not removed by this pass.
type Report struct {
	// Network and DataDir name the folder.
	Network string
	DataDir string
	// Started is when the pass began, by the wall clock.
	Started time.Time
	// Duration is how long the pass took, and SourceDuration how much of that
	// went by until the source had answered.
	Duration       time.Duration
	SourceDuration time.Duration
	// LockHeld is for how long the plugin's lock was held in all, LongestHold
	// for how long at most at once: so long an ADD may have had to wait.
	LockHeld    time.Duration
	LongestHold time.Duration
	// NextCheck is the earliest moment at which a second look is worth it,
	// because something that was kept may be a leak by then. It is zero when
	// nothing is known to come.
	NextCheck time.Time
	// Duplicates are the addresses that two live pods claim (R10).
	Duplicates []Duplicate
	// Unreserved are the addresses of live pods for which there is no
	// reservation here nor in a sibling network: host-local may give them to the
	// next pod. Addresses in networks that the pass was not told of are among
	// them.
	Unreserved []Unreserved
	// Reservations has one entry for each reservation, sorted by address. It is
	// empty when the folder could not be listed.
	Reservations []Entry
}

// An Entry is a reservation and what became of it.
type Entry struct {
	// Reservation is never nil in a report of this package. Its owner may be
	// Unread where that was not needed to keep it; see Options.ReadAll.
	*hostlocal.Reservation
	Verdict Verdict
	Reason  Reason
	// Pod is the pod that Reason speaks of, or nil.
	Pod *podsource.Pod
	// Err is what kept the reservation from being read or released, or nil.
	Err error
}

// A Duplicate is an address that several live pods claim.
type Duplicate struct {
	IP   netip.Addr
	Pods []*podsource.Pod
}

// An Unreserved is an address of a live pod without a reservation.
type Unreserved struct {
	IP  netip.Addr
	Pod *podsource.Pod
}

// Counts returns how many reservations have each verdict. Verdicts that none has
// are left out.
func (r *Report) Counts() map[Verdict]int {
	counts := make(map[Verdict]int)
	for i := range r.Reservations {
		counts[r.Reservations[i].Verdict]++
	}
	return counts
}

// MarshalJSON returns the report as one object. Its fields are a contract:
// network, dataDir, started, durationSeconds, sourceSeconds, lockHeldSeconds,
// longestHoldSeconds, counts, nextCheck, duplicates, unreserved and
// reservations. Times are RFC 3339, lists are sorted by address and never null;
// what is not known is left out.
func (r Report) MarshalJSON() ([]byte, error) {
	type duplicate struct {
		IP   netip.Addr `json:"ip"`
		Pods []string   `json:"pods"`
	}
	type unreserved struct {
		IP  netip.Addr `json:"ip"`
		Pod string     `json:"pod"`
	}
	type reservation struct {
		IP          netip.Addr `json:"ip"`
		ContainerID string     `json:"containerID,omitempty"`
		IfName      string     `json:"ifName,omitempty"`
		ReservedAt  time.Time  `json:"reservedAt,omitzero"`
		Verdict     Verdict    `json:"verdict"`
		Rule        string     `json:"rule"`
		Reason      string     `json:"reason"`
		Pod         string     `json:"pod,omitempty"`
		Error       string     `json:"error,omitempty"`
	}
	out := struct {
		Network            string          `json:"network"`
		DataDir            string          `json:"dataDir"`
		Started            time.Time       `json:"started"`
		DurationSeconds    float64         `json:"durationSeconds"`
		SourceSeconds      float64         `json:"sourceSeconds"`
		LockHeldSeconds    float64         `json:"lockHeldSeconds"`
		LongestHoldSeconds float64         `json:"longestHoldSeconds"`
		Counts             map[Verdict]int `json:"counts"`
		NextCheck          time.Time       `json:"nextCheck,omitzero"`
		Duplicates         []duplicate     `json:"duplicates"`
		Unreserved         []unreserved    `json:"unreserved"`
		Reservations       []reservation   `json:"reservations"`
	}{
		Network: r.Network, DataDir: r.DataDir, Started: r.Started.UTC(),
		DurationSeconds: r.Duration.Seconds(), SourceSeconds: r.SourceDuration.Seconds(),
		LockHeldSeconds: r.LockHeld.Seconds(), LongestHoldSeconds: r.LongestHold.Seconds(),
		Counts: r.Counts(), NextCheck: r.NextCheck.UTC(),
		Duplicates:   make([]duplicate, 0, len(r.Duplicates)),
		Unreserved:   make([]unreserved, 0, len(r.Unreserved)),
		Reservations: make([]reservation, 0, len(r.Reservations)),
	}
	for _, d := range r.Duplicates {
		pods := make([]string, len(d.Pods))
		for i, p := range d.Pods {
			pods[i] = podName(p)
		}
		out.Duplicates = append(out.Duplicates, duplicate{d.IP, pods})
	}
	for _, u := range r.Unreserved {
		out.Unreserved = append(out.Unreserved, unreserved{u.IP, podName(u.Pod)})
	}
	for i := range r.Reservations {
		e := &r.Reservations[i]
		row := reservation{Verdict: e.Verdict, Rule: e.Reason.Rule(), Reason: e.Reason.String()}
		if e.Reservation != nil {
			row.IP, row.ContainerID, row.IfName = e.IP, e.ContainerID, e.IfName
			row.ReservedAt = e.ReservedAt.UTC()
		}
		if e.Pod != nil {
			row.Pod = podName(e.Pod)
		}
		if e.Err != nil {
			row.Error = e.Err.Error()
		}
		out.Reservations = append(out.Reservations, row)
	}
	return json.Marshal(out)
}
