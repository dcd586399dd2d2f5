// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An attachment is a container's in a network, or in anyNetwork.
type attachment struct{ network, containerID string }

const anyNetwork = "" // no network has this name

// What a cache of CNI results has of an attachment.
type entryState uint8

const (
	noEntry     entryState = iota
	provenEntry            // that the container has ended
	unprovenEntry
)

// A cache is what the check of a cache of CNI results found, by network.
type cache struct {
	passed  map[string]bool       // it is the node's, and was not wiped
	doubted map[string]*candidate // why it is not, if that may end: an address without an entry
	entries map[attachment]entryState
	since   map[string]time.Time // a source may reuse its answer's Cache
	note    string               // of the named networks in which it did not pass
}

// checkCache checks in which networks a cache of CNI results is the node's and was not wiped.
// It has an entry, live or ended, of some reservation's owner there, and an entry of the owner
// of each reserved address that is seen in a namespace other than the node's own, unless that
// owner's ADD is in flight. Where no source sees addresses and ADDs, it passes nowhere.
func (s *snapshot) checkCache(of *podsource.Answer, look []podsource.Answer) *cache {
	c := &cache{
		passed: make(map[string]bool), doubted: make(map[string]*candidate),
		entries: make(map[attachment]entryState, 2*len(of.Cache.Entries)), since: maps.Clone(of.Cache.Since),
	}
	listed := make(map[string]bool) // live, or not proven
	for i := range of.Pods {
		for _, id := range of.Pods[i].ContainerIDs {
			listed[id] = true
		}
	}
	for _, e := range of.Cache.Entries {
		key := attachment{e.Network, e.ContainerID}
		if c.entries[key] = provenEntry; listed[e.ContainerID] {
			c.entries[key] = unprovenEntry
		}
		c.entries[attachment{anyNetwork, e.ContainerID}] = provenEntry
	}
	seen, inFlight, sees := make(map[netip.Addr]bool), make(map[string]bool), false
	for _, a := range look {
		sees = sees || a.SeesAddresses
		for i := range a.Pods {
			p := &a.Pods[i]
			for _, ip := range p.IPs {
				seen[normalize(ip)] = seen[normalize(ip)] || a.SeesAddresses && !p.HostNetwork
			}
			for _, id := range p.ContainerIDs {
				inFlight[id] = inFlight[id] || len(a.SeesADDs) > 0
			}
		}
	}
	if !sees {
		c.note = "it counts in no network, as no source sees addresses"
		return c
	}
	some := make(map[string]bool) // by network
	for i := range s.reservations {
		r := &s.reservations[i]
		has := r.Owner == hostlocal.Owned && c.entries[attachment{r.Network, r.ContainerID}] != noEntry
		some[r.Network] = some[r.Network] || has
		if !has && seen[r.IP] && !inFlight[r.ContainerID] {
			c.doubted[r.Network] = r
		}
	}
	var notes []string
	for _, network := range s.dirs {
		addsSeen := slices.ContainsFunc(look, func(a podsource.Answer) bool { return podsource.Covers(a.SeesADDs, network) })
		why, lack := "it has no entry of any reservation's owner", c.doubted[network]
		if lack != nil {
			why = fmt.Sprintf("%v is in a network namespace, and it has no entry of the owner %s", lack.IP, cmp.Or(lack.ContainerID, "of an empty file"))
		}
		if !addsSeen {
			why = "no source sees ADDs"
		}
		c.passed[network] = some[network] && lack == nil && addsSeen
		if _, reserved := some[network]; reserved && !c.passed[network] && slices.Contains(s.networks, network) {
			notes = append(notes, fmt.Sprintf("in %s it does not count: %s", network, why))
		}
	}
	c.note = strings.Join(notes, "; ")
	return c
}

// cacheSpeaksOf reports whether a cache that passed its check would name r's container, if that
// is live: it has a proven entry of it; or none that is not proven, and r is surely not from
// before since; or r is from before the boot and was first seen L ago (hazard 70).
func (s *snapshot) cacheSpeaksOf(since time.Time, entry entryState, r *candidate) bool {
	younger := !since.IsZero() && s.clock.trusted(s.at, r.ReservedAt) && r.ReservedAt.After(since.Add(granularity(since)))
	if entry == provenEntry || entry == noEntry && younger {
		return true
	}
	return s.clock.beforeBoot(r.ReservedAt) && s.at.mono-r.seen-s.stale >= s.opts.lag()
}
