// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// betweenLooks is how far two looks of a pass are apart at least (R5).
const betweenLooks = time.Second

// evidence is what the answers of a pass declare, look by look. What is declared
// counts where some source declares it in every look.
type evidence [][]declaration

// A declaration is what one answer declares.
type declaration struct {
	*podsource.Answer
	asOf   time.Duration     // when the answer was last true, on the monotonic clock
	counts time.Duration     // the same, or always where it is the list of the look before
	names  []podsource.Names // those that count
	proven []string          // networks in which a cache proved to be the node's
}

// newEvidence takes the declarations of each look's answers. runtimeLag is what
// podsource.RuntimeLag stands for.
func newEvidence(looks [][]podsource.Answer, rs *reservations, c *clock, at, now reading, runtimeLag time.Duration) evidence {
	e := make(evidence, len(looks))
	for i, look := range looks {
		for j := range look {
			a := &look[j]
			d := declaration{Answer: a, asOf: c.asOf(at, now, sourceID{a.Source, j}, a.AsOf), names: slices.Clone(a.Names)}
			if d.counts = d.asOf; i > 0 && j < len(looks[0]) && !a.AsOf.IsZero() && a.AsOf.Sub(looks[0][j].AsOf) < betweenLooks {
				d.counts = always
			}
			if a.Recorded != nil {
				d.proven = proven(a, look, rs)
			}
			for k := range d.names {
				n := &d.names[k]
				if n.Lag == podsource.RuntimeLag {
					n.Lag = runtimeLag
				}
				if a.Recorded != nil {
					n.Networks = slices.DeleteFunc(slices.Clone(d.proven), func(network string) bool { return !covers(n.Networks, network) })
				}
			}
			if a.Recorded != nil && len(d.proven) == 0 {
				d.names = nil
			}
			e[i] = append(e[i], d)
		}
	}
	return e
}

// staleness returns by how much the stalest answer is older than the reading at
// (R5): forever where that can't be told.
func (e evidence) staleness(at reading) (stale time.Duration) {
	for _, look := range e {
		for i := range look {
			if look[i].asOf == always {
				return forever
			}
			stale = max(stale, at.mono-look[i].asOf)
		}
	}
	return stale
}

// covers reports whether a list of networks, of which nil is all, has one.
func covers(networks []string, network string) bool {
	return networks == nil || slices.Contains(networks, network)
}

// proven returns the networks in which a cache of results is the node's and was
// not wiped: some record in it is that of a reservation's owner, and every
// reserved address that some source sees configured has a record of its owner,
// or its owner's ADD is under way. Where no source sees addresses that is none.
func proven(cache *podsource.Answer, look []podsource.Answer, rs *reservations) []string {
	recorded := make(map[podsource.Attachment]bool, len(cache.Recorded))
	for _, a := range cache.Recorded {
		recorded[a] = true
	}
	seen, inFlight, sees := make(map[netip.Addr]bool), make(map[string]bool), false
	for i := range look {
		sees = sees || look[i].SeesAddresses
		for j := range look[i].Pods {
			p := &look[i].Pods[j]
			for _, ip := range p.IPs {
				if look[i].SeesAddresses {
					seen[normalize(ip)] = true
				}
			}
			for _, id := range p.ContainerIDs {
				if look[i].SeesADDs {
					inFlight[id] = true
				}
			}
		}
	}
	if !sees {
		return nil
	}
	var networks []string
	for _, n := range rs.networks {
		some, all := false, true
		for i := range n {
			r := &n[i]
			known := r.Owner == hostlocal.Owned && recorded[podsource.Attachment{Network: r.Network, ContainerID: r.ContainerID}]
			some = some || known
			if seen[r.IP] && !known && !(r.Owner == hostlocal.Owned && inFlight[r.ContainerID]) {
				all = false
			}
		}
		if some && all {
			networks = append(networks, n[0].Network)
		}
	}
	return networks
}

// inEveryLook reports whether in each look some source declares it, by an answer
// that was true at a moment or later. A look without answers declares nothing.
func (e evidence) inEveryLook(since time.Duration, declares func(*declaration) bool) bool {
	for _, look := range e {
		if !slices.ContainsFunc(look, func(d declaration) bool { return d.counts >= since && declares(&d) }) {
			return false
		}
	}
	return len(e) > 0
}

// names returns by how much later than its reservation r's container is named at
// the latest, in every look. False is: none of the sources would name it.
func (e evidence) names(r *hostlocal.Reservation, since time.Duration) (lag time.Duration, ok bool) {
	for _, look := range e {
		best := time.Duration(-1)
		for i := range look {
			d := &look[i]
			for _, n := range d.names {
				if d.counts >= since && covers(n.Networks, r.Network) && n.Form.Matches(r.ContainerID) && (best < 0 || n.Lag < best) {
					best = n.Lag
				}
			}
		}
		if best < 0 {
			return 0, false
		}
		lag = max(lag, best)
	}
	return lag, len(e) > 0
}

// speaksOf reports whether some source speaks of a network (R14).
func (e evidence) speaksOf(network string) bool {
	return e.inEveryLook(always, func(d *declaration) bool {
		if slices.Contains(d.proven, network) {
			return true
		}
		return covers(d.Networks, network) && !(d.Supplementary && d.Networks == nil)
	})
}

// foreign reports whether no source could mean a container of r's ID: some of
// them say of which form those are that they mean, and none says this one (R14).
// This is a matter of form alone, however old the answer is.
func (e evidence) foreign(r *hostlocal.Reservation) bool {
	if r.Owner != hostlocal.Owned {
		return false
	}
	some := false // says in r's network which containers it means
	means := func(d *declaration) bool {
		matches := false
		for _, n := range d.names {
			if covers(n.Networks, r.Network) {
				some, matches = true, matches || n.Form.Matches(r.ContainerID)
			}
		}
		for _, f := range d.Forms {
			some, matches = true, matches || f.Matches(r.ContainerID)
		}
		return matches
	}
	return !e.inEveryLook(always, means) && some
}

func seesADDs(d *declaration) bool      { return d.SeesADDs }
func seesAddresses(d *declaration) bool { return d.SeesAddresses }

// cached reports whether a cache that proved to be the node's names a container
// of r's ID when its ADD has ended.
func cached(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool {
		return d.Recorded != nil && slices.ContainsFunc(d.names, func(n podsource.Names) bool {
			return n.Lag == 0 && covers(n.Networks, r.Network) && n.Form.Matches(r.ContainerID)
		})
	}
}
