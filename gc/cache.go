// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An attachment is a container's in a network, or in anyNetwork.
type attachment struct{ network, containerID string }

const anyNetwork = "" // no network has this name

// A cache is what the check of a cache of CNI results found, by network.
type cache struct {
	passed  map[string]bool       // it is the node's, and was not wiped
	doubted map[string]*candidate // why it is not, if that may end: an address without an entry
	entries map[attachment]bool   // whether the entry proves that the container has ended
	since   map[string]time.Time  // a source may reuse its answer's Cache
	notes   []string              // of the named networks in which it did not pass
}

// checkCache checks in which networks a cache of CNI results is the node's and was not wiped.
// It has an entry, live or ended, of some reservation's owner there, and an entry of the owner
// of each reserved address that is seen in a namespace other than the node's own, unless that
// owner's ADD is in flight. Where no source sees addresses and ADDs, it does not pass.
func (s *snapshot) checkCache(of *podsource.Answer, look []podsource.Answer) *cache {
	c := &cache{
		passed: make(map[string]bool), doubted: make(map[string]*candidate),
		entries: make(map[attachment]bool, 2*len(of.Cache.Entries)), since: make(map[string]time.Time),
	}
	seen, inFlight, listed, seesAddresses := make(map[netip.Addr]bool), make(map[string]bool), make(map[string]bool), false
	for _, a := range look {
		seesAddresses = seesAddresses || a.SeesAddresses
		for i := range a.Pods {
			p := &a.Pods[i]
			for _, ip := range p.IPs {
				seen[normalize(ip)] = seen[normalize(ip)] || a.SeesAddresses && !p.HostNetwork
			}
			for _, id := range p.ContainerIDs {
				inFlight[id] = inFlight[id] || len(a.SeesADDs) > 0
				listed[id] = listed[id] || a.Cache != nil // live, or not proven
			}
		}
	}
	for _, e := range of.Cache.Entries {
		c.entries[attachment{e.Network, e.ContainerID}] = !listed[e.ContainerID]
		c.entries[attachment{anyNetwork, e.ContainerID}] = true
	}
	some := make(map[string]bool) // by network
	for i := range s.reservations {
		r := &s.reservations[i]
		_, has := c.entries[attachment{r.Network, r.ContainerID}]
		has = has && r.Owner == hostlocal.Owned
		some[r.Network] = some[r.Network] || has
		if !has && seen[r.IP] && !inFlight[r.ContainerID] {
			c.doubted[r.Network] = r
		}
	}
	for _, network := range s.dirs {
		c.since[network] = of.Cache.Since[network]
		seesADDs := slices.ContainsFunc(look, func(a podsource.Answer) bool { return podsource.Covers(a.SeesADDs, network) })
		has, reserved := some[network]
		why, lack := "", c.doubted[network]
		switch {
		case !seesAddresses || !seesADDs:
			why = "no source sees addresses and ADDs"
		case lack != nil:
			why = fmt.Sprintf("%v is in a network namespace, and it has no entry of the owner %s", lack.IP, cmp.Or(lack.ContainerID, "of an empty file"))
		case !has:
			why = "it has no entry of any reservation's owner"
		}
		if c.passed[network] = why == ""; why != "" && reserved && slices.Contains(s.networks, network) {
			c.notes = append(c.notes, fmt.Sprintf("in %s it does not count: %s", network, why))
		}
	}
	return c
}

// cacheSpeaksOf reports whether a cache that passed its check would name r's container, if that is
// live, and whether its entry proves that it is not: it has a proven entry of it; or none that is
// not proven, and r is surely not from before since; or r is from before the boot and was first
// seen L ago (hazard 70).
func (s *snapshot) cacheSpeaksOf(c *cache, r *candidate) (speaks, proven bool) {
	proven, has := c.entries[attachment{r.Network, r.ContainerID}]
	since := c.since[r.Network]
	younger := !since.IsZero() && s.clock.trusted(s.at, r.ReservedAt) && r.ReservedAt.After(since.Add(granularity(since)))
	seenLongAgo := s.clock.beforeBoot(r.ReservedAt) && s.at.mono-r.seen-s.stale >= s.opts.lag()
	return proven || !has && younger || seenLongAgo, proven
}
