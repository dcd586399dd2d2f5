// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// betweenLooks is the minimum time between two looks of a pass (R5).
const betweenLooks = time.Second

// evidence has the declarations of a pass, look by look. A declaration counts if the
// same source makes it in every look.
type evidence [][]declaration

// A declaration is an answer as it counts. The Networks of a cache but for the unconditional
// ones are those in which it proved to be the node's, and its Names are limited to those in
// which it has records.
type declaration struct {
	podsource.Answer
	asOf   time.Duration // when the answer was last true, on the monotonic clock
	counts time.Duration // asOf, or always if it is the answer of the look before
	// For a cache, the networks that it speaks of without proof, and whether it would
	// name r's container if that is live. For other sources both are nil: all networks.
	unconditional []string
	mustName      func(r *hostlocal.Reservation) bool
}

// addLook adds the answers of one look, and returns their declarations. The reading
// now was taken after the answers.
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

// keep copies the slices that a source may reuse for its next answer.
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

// covers reports whether a list of networks has one. A nil list has all.
func covers(networks []string, network string) bool {
	return networks == nil || slices.Contains(networks, network)
}

// least returns the least value of any source. The value of a source is the greatest
// of its looks, or forever if one of its answers is missing or from before since.
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

// inEveryLook reports whether one source makes a declaration in each look, by answers
// from since or later.
func (e evidence) inEveryLook(since time.Duration, declares func(*declaration) bool) bool {
	return e.least(since, func(d *declaration) time.Duration {
		if declares(d) {
			return 0
		}
		return forever
	}) < forever
}

// lag returns the time from the reservation until some source must name r's container,
// or forever if none would name it in every look. Answers from before since don't count.
func (e evidence) lag(r *hostlocal.Reservation, since time.Duration) time.Duration {
	return e.least(since, func(d *declaration) time.Duration { return d.lag(r) })
}

// lagOfRuntime returns the lag of a source, or forever for a cache of results.
func lagOfRuntime(r *hostlocal.Reservation) func(*declaration) time.Duration {
	return func(d *declaration) time.Duration {
		if d.Recorded != nil {
			return forever
		}
		return d.lag(r)
	}
}

// lag returns the time from the reservation until the source must name r's container,
// or forever if it does not name such containers.
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

// inGap reports whether r may have been made in a gap of the source. Its timestamp may
// be too early.
func (d *declaration) inGap(r *hostlocal.Reservation) bool {
	latest := r.ReservedAt.Add(granularity(r.ReservedAt))
	return slices.ContainsFunc(d.Gaps, func(g podsource.Gap) bool {
		if g.But.Matches(r.ContainerID) {
			return false
		}
		return r.ReservedAt.IsZero() || !latest.Before(g.From) && (g.To.IsZero() || !r.ReservedAt.After(g.To))
	})
}

// speaksOf matches a source that speaks of r's network (R14).
func speaksOf(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool { return covers(d.Networks, r.Network) }
}

// mayName matches a source that speaks of r itself: a cache does not speak of what it may
// have lost, and no source speaks of what was reserved in its gaps.
func mayName(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool {
		return !d.inGap(r) && covers(d.Networks, r.Network) && (covers(d.unconditional, r.Network) || d.mustName(r))
	}
}

// foreign reports whether no source could mean r's container: some sources declare the
// forms of container IDs that they mean, and none declares the form of this one (R14).
// Only forms count, not the age of the answers. The Names of a source in whose gap r was
// made don't count, neither for r nor against it.
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
