// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// checkCache adds the networks in which a cache of results proved to be the node's to those
// that it speaks of. For a reservation there it would name the container, if that is live,
// in three cases: it has a record of the container, it was not wiped since the reservation
// was made, or the reservation is from before the boot, so that the container can't be live
// (hazard 70). Its Names are limited to the networks in which it has records, proven or not:
// whom they can't mean is foreign there, whatever the cache lacks.
func (s *snapshot) checkCache(d *declaration, look []podsource.Answer) {
	recorded := make(map[podsource.Attachment]bool, len(d.Recorded))
	for _, a := range d.Recorded {
		recorded[a] = true
	}
	networks, known, why := proven(recorded, look, s.reservations, s.networks)
	d.Note = strings.Trim(d.Note+"; "+why, "; ")
	d.unconditional = slices.Clone(d.Networks) // not copied by keep
	if d.Networks != nil {
		d.Networks = append(slices.Clip(d.Networks), networks...) // never nil, which means all
	}
	for i := range d.Names {
		n := &d.Names[i]
		some := append([]string{}, known...) // not nil either
		n.Networks = slices.DeleteFunc(some, func(network string) bool { return !covers(n.Networks, network) })
	}
	since := d.RecordedSince.Add(granularity(d.RecordedSince))
	d.mustName = func(r *hostlocal.Reservation) bool {
		return slices.Contains(networks, r.Network) && (recorded[attachmentOf(r)] || s.clock.beforeBoot(r) ||
			!d.RecordedSince.IsZero() && s.clock.trusted(s.at, r.ReservedAt) && r.ReservedAt.After(since))
	}
}

func attachmentOf(r *hostlocal.Reservation) podsource.Attachment {
	return podsource.Attachment{Network: r.Network, ContainerID: r.ContainerID}
}

// proven returns the networks in which a cache of results is the node's and was not
// wiped. In such a network it has a record of some reservation's owner, and a record of
// the owner of each reserved address that a source sees configured, unless that owner's
// ADD is in flight. It is known in those with such a record, proven or not. If no source
// sees addresses, no network is either. Of the other named networks, why says what is missing.
func proven(recorded map[podsource.Attachment]bool, look []podsource.Answer, rs []hostlocal.Reservation, named []string) (networks, known []string, why string) {
	if !slices.ContainsFunc(look, func(a podsource.Answer) bool { return a.SeesAddresses }) {
		return nil, nil, "it counts in no network, as no source sees addresses"
	}
	seen, inFlight := make(map[netip.Addr]bool), make(map[string]bool)
	for _, a := range look {
		for _, p := range a.Pods {
			for _, ip := range p.IPs {
				seen[normalize(ip)] = seen[normalize(ip)] || a.SeesAddresses
			}
			for _, id := range p.ContainerIDs {
				inFlight[id] = inFlight[id] || a.SeesADDs
			}
		}
	}
	some, lacking := make(map[string]bool), make(map[string]*hostlocal.Reservation) // by network
	for i := range rs {
		r := &rs[i]
		has := r.Owner == hostlocal.Owned && recorded[attachmentOf(r)]
		some[r.Network] = some[r.Network] || has
		if !has && seen[r.IP] && !inFlight[r.ContainerID] {
			lacking[r.Network] = r
		}
	}
	var reasons []string
	for _, network := range slices.Sorted(maps.Keys(some)) {
		if some[network] {
			known = append(known, network)
		}
		switch lack := lacking[network]; {
		case lack == nil && some[network]:
			networks = append(networks, network)
		case !slices.Contains(named, network): // nothing is to be released there
		case lack != nil:
			reasons = append(reasons, fmt.Sprintf("in %s it does not count: %v is in a network namespace, and it has no record of the owner %s",
				network, lack.IP, cmp.Or(lack.ContainerID, "of an empty file")))
		default:
			reasons = append(reasons, fmt.Sprintf("in %s it does not count: it has no record of any reservation's owner", network))
		}
	}
	return networks, known, strings.Join(reasons, "; ")
}

// cached matches a proven cache that names r's container once its ADD has ended.
func cached(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool { return d.Recorded != nil && d.lag(r) == 0 }
}
