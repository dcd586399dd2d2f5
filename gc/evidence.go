// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// betweenLooks is how far two looks of a pass are apart at least (R5).
const betweenLooks = time.Second

// evidence is what the answers of a pass declare, look by look. What is declared
// counts where one and the same source declares it in every look.
type evidence [][]declaration

// A declaration is an answer, in which Networks and Names say what they come to:
// of a cache what it says of networks in which it proved to be the node's.
type declaration struct {
	podsource.Answer
	asOf   time.Duration // when the answer was last true, on the monotonic clock
	counts time.Duration // the same, or always where it is the list of the look before
	// Of a cache: the networks that it speaks of whatever it proved, and whether it
	// would name r's container if that lives. Of others both are nil: all networks.
	unasked  []string
	mustName func(r *hostlocal.Reservation) bool
}

// addLook takes in the answers of one look, after which the reading now was
// taken, and returns what they come to.
func (s *snapshot) addLook(answers []podsource.Answer, now reading) []declaration {
	look := make([]declaration, len(answers))
	for i, a := range answers {
		d := declaration{Answer: a, asOf: s.clock.asOf(s.at, now, i, &a, 2*s.opts.Interval)}
		d.counts = d.asOf
		if len(s.evidence) > 0 && i < len(s.evidence[0]) && !a.AsOf.IsZero() && a.AsOf.Sub(s.evidence[0][i].AsOf) < betweenLooks {
			d.counts = always
		}
		if s.stale = max(s.stale, s.at.mono-d.asOf); d.asOf == always {
			s.stale = forever
		}
		if a.Supplementary && a.Networks == nil {
			d.Networks = []string{}
		}
		d.Names = slices.Clone(a.Names)
		for k := range d.Names {
			if d.Names[k].Lag == podsource.RuntimeLag {
				d.Names[k].Lag = s.opts.lag() // what podsource.RuntimeLag stands for
			}
		}
		if a.Recorded != nil {
			s.checkCache(&d, answers)
		}
		look[i] = d
	}
	s.evidence = append(s.evidence, look)
	s.pods = indexPods(s.evidence, len(s.reservations), s.clock, s.at, now)
	return look
}

// keep copies what a source may use again for its next answer.
func (d *declaration) keep() {
	d.Networks, d.Forms, d.Pods, d.Gaps = slices.Clone(d.Networks), slices.Clone(d.Forms), slices.Clone(d.Pods), slices.Clone(d.Gaps)
	for i := range d.Names {
		d.Names[i].Networks = slices.Clone(d.Names[i].Networks)
	}
	for i := range d.Pods {
		p := &d.Pods[i]
		p.ContainerIDs, p.IPs = slices.Clone(p.ContainerIDs), slices.Clone(p.IPs)
	}
}

// covers reports whether a list of networks, of which nil is all, has one.
func covers(networks []string, network string) bool {
	return networks == nil || slices.Contains(networks, network)
}

// least returns the least that holds for one and the same source in each look, by
// answers that were true at a moment or later; forever where none does.
func (e evidence) least(since time.Duration, of func(*declaration) time.Duration) time.Duration {
	least := forever
	for i := range e[0] {
		inAll := always
		for _, look := range e {
			if i >= len(look) || look[i].counts < since {
				inAll = forever
			} else {
				inAll = max(inAll, of(&look[i]))
			}
		}
		least = min(least, inAll)
	}
	return least
}

// inEveryLook reports whether some source declares it in each look, by an answer
// that was true at a moment or later.
func (e evidence) inEveryLook(since time.Duration, declares func(*declaration) bool) bool {
	return e.least(since, func(d *declaration) time.Duration {
		if declares(d) {
			return 0
		}
		return forever
	}) < forever
}

// lag returns by how much later than its reservation r's container is named at
// the latest, by a source whose answers were true at a moment or later: forever
// where none of them would name it in every look.
func (e evidence) lag(r *hostlocal.Reservation, since time.Duration) time.Duration {
	return e.least(since, func(d *declaration) time.Duration { return d.lag(r) })
}

// lagOfRuntime is the same of a source that is no cache of results.
func lagOfRuntime(r *hostlocal.Reservation) func(*declaration) time.Duration {
	return func(d *declaration) time.Duration {
		if d.Recorded != nil {
			return forever
		}
		return d.lag(r)
	}
}

// lag returns by how much later than its reservation r's container is named at
// the latest, or forever where it is none of those that are named.
func (d *declaration) lag(r *hostlocal.Reservation) time.Duration {
	lag := forever
	if d.inGap(r) || d.mustName != nil && !d.mustName(r) {
		return lag
	}
	for _, n := range d.Names {
		if covers(n.Networks, r.Network) && n.Form.Matches(r.ContainerID) {
			lag = min(lag, n.Lag)
		}
	}
	return lag
}

// inGap reports whether r may have been made in a gap of the source: its timestamp
// may be too early.
func (d *declaration) inGap(r *hostlocal.Reservation) bool {
	latest := r.ReservedAt.Add(granularity(r.ReservedAt))
	return slices.ContainsFunc(d.Gaps, func(g podsource.Gap) bool {
		if g.But.Matches(r.ContainerID) {
			return false
		}
		return r.ReservedAt.IsZero() || !latest.Before(g.From) && (g.To.IsZero() || !r.ReservedAt.After(g.To))
	})
}

// speaksOf reports whether some source speaks of r's network (R14).
func speaksOf(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool { return covers(d.Networks, r.Network) }
}

// mayName reports the same of r itself: a cache does not speak of what it may
// have lost, and no source of its gaps.
func mayName(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool {
		return !d.inGap(r) && covers(d.Networks, r.Network) && (covers(d.unasked, r.Network) || d.mustName(r))
	}
}

// foreign reports whether no source could mean a container of r's ID: some of
// them say of which form those are that they mean, and none says this one (R14).
// This is a matter of form alone, however old the answer is. A source that was not
// told when r was made says nothing of it, also not that r is none of another's.
func (e evidence) foreign(r *hostlocal.Reservation) bool {
	means := func(d *declaration) bool {
		return d.lag(r) < forever || slices.ContainsFunc(d.Forms, func(f podsource.Form) bool { return f.Matches(r.ContainerID) })
	}
	says := func(d declaration) bool {
		return len(d.Forms) > 0 || !d.inGap(r) && slices.ContainsFunc(d.Names, func(n podsource.Names) bool { return covers(n.Networks, r.Network) })
	}
	someSay := func(look []declaration) bool { return slices.ContainsFunc(look, says) }
	return r.Owner == hostlocal.Owned && !e.inEveryLook(always, means) && slices.ContainsFunc(e, someSay)
}

func seesADDs(d *declaration) bool      { return d.SeesADDs }
func seesAddresses(d *declaration) bool { return d.SeesAddresses }
