// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// entries lists what became of each reservation.
func entries(w *world, judged func(i int) judgement) []Entry {
	out := make([]Entry, len(w.here.rs))
	for i := range out {
		j := judged(i)
		out[i] = Entry{Reservation: &w.here.rs[i], Reason: j.reason, Verdict: j.reason.Verdict(), Err: w.here.failures[i]}
		if j.pod != nobody {
			out[i].Pod = &w.view.pods[j.pod]
		}
	}
	return out
}

// soon is when to look again after something that nobody knows the end of.
const soon = time.Minute

// nextCheck is the earliest moment at which a verdict may turn to leaked.
func nextCheck(w world, judged []judgement, finishedFor time.Duration) (next time.Time) {
	for i, j := range judged {
		var in time.Duration
		switch j.reason.Verdict() {
		case Young:
			age, _ := w.clock.age(w.at, &w.here.rs[i])
			in = w.minAge - age
		case Starting, Changed:
			in = min(soon, max(w.minAge, time.Second))
		case InUse:
			finished := w.view.pods[j.pod].FinishedAt
			if finished.IsZero() {
				continue
			}
			in = finishedFor - w.clock.since(w.at, finished)
		default:
			continue
		}
		if t := w.at.wall.Add(in); next.IsZero() || t.Before(next) {
			next = t
		}
	}
	return next
}

// log says what was released at V(0), which candidates were kept at V(2), and
// the rest at V(4).
func (r *Reconciler) log(report *Report) {
	log := r.opts.Logger.WithValues("network", report.Network)
	kept, rest := log.V(2), log.V(4)
	for i := range report.Reservations {
		e := &report.Reservations[i]
		l, msg := kept, "Kept a reservation"
		switch e.Verdict {
		case Released:
			l, msg = log, "Released a leaked reservation"
		case InUse:
			l = rest
		}
		if !l.Enabled() {
			continue
		}
		keys := []any{"IP", e.IP, "containerID", e.ContainerID, "ifName", e.IfName, "verdict", e.Verdict.String(), "reason", e.Reason.String()}
		if e.Pod != nil {
			keys = append(keys, "pod", podName(e.Pod))
		}
		l.Info(msg, keys...)
	}
}

// duplicates returns the addresses that two live pods surely claim, whether
// reserved here or not, sorted.
func (v *view) duplicates(n *network) []Duplicate {
	var dups []Duplicate
	for i := range n.claims.more {
		if first := n.claims.first[i]; v.rival(&n.claims, i, first) != nobody {
			d := Duplicate{IP: n.rs[i].IP, Pods: []*podsource.Pod{&v.pods[first]}}
			for _, other := range n.claims.more[i] {
				d.Pods = append(d.Pods, &v.pods[other])
			}
			dups = append(dups, d)
		}
	}
	for rest := n.claims.unreserved; len(rest) > 0; {
		same := 1
		for same < len(rest) && rest[same].ip == rest[0].ip {
			same++
		}
		d := Duplicate{IP: rest[0].ip, Pods: []*podsource.Pod{&v.pods[rest[0].pod]}}
		for _, c := range rest[1:same] {
			if v.distinct(rest[0].pod, c.pod) {
				d.Pods = append(d.Pods, &v.pods[c.pod])
			}
		}
		if len(d.Pods) > 1 {
			dups = append(dups, d)
		}
		rest = rest[same:]
	}
	slices.SortFunc(dups, func(a, b Duplicate) int { return a.IP.Compare(b.IP) })
	return dups
}

// unreserved returns the live addresses for which none of the networks has a
// reservation, sorted, each once.
func (v *view) unreserved(here *network, siblings []network) []Unreserved {
	var out []Unreserved
	for _, c := range here.claims.unreserved {
		elsewhere := slices.ContainsFunc(siblings, func(n network) bool {
			_, found := find(n.rs, c.ip)
			return found
		})
		if !elsewhere && (len(out) == 0 || out[len(out)-1].IP != c.ip) {
			out = append(out, Unreserved{IP: c.ip, Pod: &v.pods[c.pod]})
		}
	}
	return out
}
