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

// restrict leaves of what a cache declares that of networks in which it proved to
// be the node's. Of these it speaks.
func (d *declaration) restrict(proven []string) {
	if d.Networks != nil {
		d.Networks = append(slices.Clip(d.Networks), proven...)
	}
	for i := range d.Names {
		n := &d.Names[i]
		some := append([]string{}, proven...) // never nil, which is all
		n.Networks = slices.DeleteFunc(some, func(network string) bool { return !covers(n.Networks, network) })
	}
}

// mustRecord returns a function that reports whether a cache that proved to be the
// node's has a record of r's container if that lives: it has one, or it was not
// wiped since r was made, or what was made then can't live (hazard 70).
func (s *snapshot) mustRecord(cache *podsource.Answer) func(*hostlocal.Reservation) bool {
	recorded, since := recordedIn(cache), cache.RecordedSince.Add(granularity(cache.RecordedSince))
	return func(r *hostlocal.Reservation) bool {
		return recorded[attachmentOf(r)] || s.clock.beforeBoot(r) ||
			!cache.RecordedSince.IsZero() && s.clock.trusted(s.at, r.ReservedAt) && r.ReservedAt.After(since)
	}
}

// recordedIn returns the attachments that a cache has records of.
func recordedIn(cache *podsource.Answer) map[podsource.Attachment]bool {
	recorded := make(map[podsource.Attachment]bool, len(cache.Recorded))
	for _, a := range cache.Recorded {
		recorded[a] = true
	}
	return recorded
}

func attachmentOf(r *hostlocal.Reservation) podsource.Attachment {
	return podsource.Attachment{Network: r.Network, ContainerID: r.ContainerID}
}

// proven returns the networks in which a cache of results is the node's and was
// not wiped: some record in it is that of a reservation's owner, and every
// reserved address that some source sees configured has a record of its owner,
// or its owner's ADD is under way. Where no source sees addresses that is none. Of
// the others that are to be released in it says what is missing.
func proven(cache *podsource.Answer, look []podsource.Answer, rs []hostlocal.Reservation, named []string) (networks []string, why string) {
	recorded := recordedIn(cache)
	seen, inFlight, sees := make(map[netip.Addr]bool), make(map[string]bool), false
	for i := range look {
		sees = sees || look[i].SeesAddresses
		for j := range look[i].Pods {
			p := &look[i].Pods[j]
			for _, ip := range p.IPs {
				seen[normalize(ip)] = seen[normalize(ip)] || look[i].SeesAddresses
			}
			for _, id := range p.ContainerIDs {
				inFlight[id] = inFlight[id] || look[i].SeesADDs
			}
		}
	}
	if !sees {
		return nil, "it counts in no network, as no source sees addresses"
	}
	some, lacking := make(map[string]bool), make(map[string][]*hostlocal.Reservation) // by network
	for i := range rs {
		r := &rs[i]
		has := r.Owner == hostlocal.Owned && recorded[attachmentOf(r)]
		some[r.Network] = some[r.Network] || has
		if !has && seen[r.IP] && !inFlight[r.ContainerID] {
			lacking[r.Network] = append(lacking[r.Network], r)
		}
	}
	var reasons []string
	for _, network := range slices.Sorted(maps.Keys(some)) {
		switch lack := lacking[network]; {
		case (len(lack) > 0 || !some[network]) && !slices.Contains(named, network):
		case len(lack) > 0:
			reasons = append(reasons, fmt.Sprintf("in %s it does not count: of the addresses in network namespaces %d have no record of their owner, as %v of %s",
				network, len(lack), lack[0].IP, cmp.Or(lack[0].ContainerID, "an empty file")))
		case !some[network]:
			reasons = append(reasons, fmt.Sprintf("in %s it does not count: it has no record of any reservation's owner", network))
		default:
			networks = append(networks, network)
		}
	}
	return networks, strings.Join(reasons, "; ")
}

// cached reports whether a cache that proved to be the node's names a container
// of r's ID when its ADD has ended.
func cached(r *hostlocal.Reservation) func(*declaration) bool {
	return func(d *declaration) bool { return d.Recorded != nil && d.lag(r) == 0 }
}
