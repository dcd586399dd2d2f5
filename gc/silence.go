// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// betweenLooks is the minimum time between two looks of a pass (R5).
const betweenLooks = time.Second

// A declaration is an answer as it counts.
type declaration struct {
	podsource.Answer
	asOf  time.Duration // when the answer was last true, on the monotonic clock
	fresh bool          // that was not before the look began
	cache *cache        // of an answer with a Cache
}

// addLook adds the answers of one look, which began at began. The reading now was taken after
// the answers.
func (s *snapshot) addLook(answers []podsource.Answer, began, now reading) {
	look := make([]declaration, len(answers))
	for i, a := range answers {
		s.listed += len(a.Pods)
		d := declaration{Answer: a, asOf: s.clock.asOf(s.at, now, &a), fresh: s.clock.asOf(began, now, &a) >= began.mono}
		s.stale = max(s.stale, s.at.mono-d.asOf)
		if a.Cache != nil {
			d.cache = s.checkCache(&a, answers)
		}
		look[i] = d
	}
	s.evidence = append(s.evidence, look)
	s.pods = s.indexPods(now)
}

// keep copies the slices that a source may reuse for its next answer.
func (d *declaration) keep() {
	d.Networks, d.SeesADDs, d.Pods, d.Gaps = slices.Clone(d.Networks), slices.Clone(d.SeesADDs), slices.Clone(d.Pods), slices.Clone(d.Gaps)
	for i := range d.Pods {
		p := &d.Pods[i]
		p.ContainerIDs, p.IPs = slices.Clone(p.ContainerIDs), slices.Clone(p.IPs)
	}
}

// A silence says what it means that no source names the container of a reservation: a set of
// facts, each of which one and the same source declares in every look of the pass.
type silence uint16

const (
	speaksOf silence = 1 << iota // of the reservation's network (R14)
	mayName                      // of the reservation itself: it can't have missed or lost its container
	names                        // the container, if it were live, late or at once, by answers of any age
	recorded                     // the same, at once, by a record (R14)
	waived                       // ... for which the hook's assertion holds (R5)

	// By answers from after the reservation was first seen:
	namesNow  // the container, late or at once
	byNoCache // the same by a source that is no cache

	// By answers from after each look began:
	addresses // every address in a network namespace
	adds      // every ADD in flight
	atOnce    // the container, at once
	cached    // the same by a cache
	knows     // the same by a record, or by a cache with a proven entry of this attachment

	inCache // an entry of its owner is in a cache of CNI results, live or ended, of any network (R14)

	// These two hold if any source says so in any look.
	listsPods // of Kubernetes or their sandboxes: other owners are foreign (R14)
	doubt     // a cache does not pass its check now, and may soon

	own // an earlier ADD of Options.OwnADD made it, and every ADD and address is seen
)

// has reports whether all of the facts hold.
func (q silence) has(facts silence) bool { return q&facts == facts }

// add adds facts if they hold.
func (q *silence) add(hold bool, facts silence) {
	if hold {
		*q |= facts
	}
}

// about returns what the silence of all sources means for r.
func (s *snapshot) about(r *candidate) (all silence) {
	for i := range max(len(s.evidence[0]), len(s.evidence[len(s.evidence)-1])) {
		one := ^silence(0)
		for _, look := range s.evidence {
			var q silence
			if i < len(look) {
				q = s.aboutOne(&look[i], r)
			}
			one &= q
			all |= q & (listsPods | doubt)
		}
		all |= one
	}
	all.add(s.isOwn(r) && all.has(adds|addresses), own)
	return all
}

// isOwn reports whether an earlier ADD of Options.OwnADD made r. Host-local before 0.8.0 wrote no
// interface.
func (s *snapshot) isOwn(r *candidate) bool {
	of := &s.opts.OwnADD
	return r.Owner == hostlocal.Owned && r.Network == of.Network && r.ContainerID == of.ContainerID &&
		(r.IfName == of.IfName || r.IfName == "")
}

// aboutOne returns what the silence of one source in one look means for r.
func (s *snapshot) aboutOne(d *declaration, r *candidate) (q silence) {
	speaks, knowsOf, proven := podsource.Covers(d.Networks, r.Network), true, false
	if d.cache != nil {
		speaks = d.cache.passed[r.Network]
		knowsOf, proven = s.cacheSpeaksOf(d.cache, r)
		q.add(d.cache.entries[attachment{anyNetwork, r.ContainerID}], inCache)
		q.add(d.cache.doubted[r.Network] != nil, doubt)
	}
	q.add(speaks, speaksOf)
	q.add((speaks || d.cache != nil) && d.Names != podsource.AnyContainer, listsPods)
	if speaks && knowsOf && !inGap(d.Gaps, r.Reservation) {
		q |= mayName
		q.add(d.Names.Has(r.ContainerID), names)
		q.add(d.AtOnce && d.cache == nil && q.has(names), recorded)
		q.add(s.noADD && q.has(recorded) && s.clock.listedSince(s.at, d, r), waived)
	}
	if d.asOf < r.seen {
		return q
	}
	q.add(q.has(names), namesNow)
	q.add(q.has(names) && d.cache == nil, byNoCache)
	if d.fresh {
		q.add(d.SeesAddresses, addresses)
		q.add(podsource.Covers(d.SeesADDs, r.Network), adds)
		if d.AtOnce && q.has(names) {
			q |= atOnce
			q.add(d.cache != nil, cached)
			q.add(q.has(recorded) || proven, knows)
		}
	}
	return q
}

// inGap reports whether r may have been made in one of a source's gaps, by its time as it
// stands. That may be too early by its granularity.
func inGap(gaps []podsource.Gap, r *hostlocal.Reservation) bool {
	latest := r.ReservedAt.Add(granularity(r.ReservedAt))
	return slices.ContainsFunc(gaps, func(g podsource.Gap) bool {
		if g.But.Has(r.ContainerID) {
			return false
		}
		return r.ReservedAt.IsZero() || !latest.Before(g.From) && (g.To.IsZero() || !r.ReservedAt.After(g.To))
	})
}

// foreign reports whether an owner may be one that no source here could know (R14).
func (s *snapshot) foreign(r *candidate, q silence) bool {
	allowed := func(prefix string) bool { return prefix == "*" || strings.HasPrefix(r.ContainerID, prefix) }
	switch {
	case r.Owner != hostlocal.Owned || q.has(own) || slices.ContainsFunc(s.opts.AllowForeign, allowed):
		return false
	case !isContainer(r.ContainerID) && !q.has(inCache):
		return true
	case s.allNetworks:
		return !q.has(addresses)
	}
	return q.has(listsPods) && !podsource.SandboxContainers.Has(r.ContainerID) && q&(addresses|recorded) == 0
}

// isContainer reports whether an owner ends in the ID of a container: 64 hexadecimal digits or a UUID. Any
// other owner is free text: operators block an address by a word, and Cilium reserves one for its own
// ingress under a name (cilium/cilium#46386).
func isContainer(owner string) bool {
	hex := func(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdefABCDEF") == "" }
	last := func(n int) string { return owner[max(0, len(owner)-n):] }
	return hex(last(64), 64) || slices.EqualFunc(strings.Split(last(36), "-"), []int{8, 4, 4, 4, 12}, hex)
}
