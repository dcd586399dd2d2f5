// SPDX-License-Identifier: Apache-2.0

package gc

// settle ends all faults, and fails unless then each leak is released in time, or a rule keeps it.
func (x *explorer) settle(s smallNode, stuck bool) {
	s.held = nil
	for k := range s.conts {
		c := &s.conts[k]
		s.end(c, k)
		x.apply(&s, "c# listed by the runtime", k)
		x.apply(&s, "c# in its pod's status", k)
		s.files[k].kind %= unreadable
	}
	for i := range s.pods {
		s.pods[i].there = s.pods[i].there && (stuck || s.of(i) != nil)
	}
	k := x.key(&s, nil)
	if x.settled[k] {
		return
	}
	x.settled[k] = true
	for first := s.now; x.broken == ""; {
		waiting, before := false, s.smallWorld
		x.pass(&s, nil, occasion{inLoop: true}, false)
		for _, e := range x.report.Reservations {
			a := x.index(e.Reservation)
			if s.files[a].gen == 0 || s.at(a) != nil {
				continue
			}
			within, rule := x.keeps(&before, a)
			switch late := s.now > first+within+x.interval(); {
			case rule != e.Reason && late:
				x.violate("%v is leaked, and %d s after the last fault it is kept: %s, not %q", e.IP, s.now-first, e.Reason, rule)
			case !late:
				waiting = true
			}
		}
		if !waiting {
			return
		}
		pause := x.interval()
		if next := x.report.NextCheck; !next.IsZero() {
			pause = min(pause, max(15, int64(next.Sub(s.reading().wall).Seconds())+1))
		}
		x.advance(&s.smallWorld, pause)
	}
}

// keeps returns how long a leak may be kept on this very node, and by which rule for ever.
func (x *explorer) keeps(s *smallWorld, a int) (within int64, rule Reason) {
	f, now := s.files[a], s.now+s.off
	at, has := s.wall[stamp+a], func(i int) bool { return s.files[i].kind == whole && s.wall[cachedAt+int(s.files[i].owner)] > 0 }
	oldest, passes := now, x.has(fromCache)
	some := false
	for i := range 2 {
		if k := s.wall[cachedAt+i]; k > 0 {
			oldest = min(oldest, k)
		}
		if s.files[i].gen > 0 && x.set.networks[i] == x.set.networks[a] {
			some, passes = some || has(i), passes && (has(i) || s.at(i) == nil)
		}
	}
	entry, passes := has(a), passes && some
	beforeBoot := at < s.low-1 || at > s.left && at < s.booted+s.off-1
	trusted := s.stepAt == 0 && at >= s.booted+s.off && at <= now
	within = x.lag
	knows := passes && (entry || trusted && at > oldest)
	speaks := x.has(fromKubelet) || x.has(fromRuntime) || x.has(fromRecord) && x.set.networks[a] == network1
	switch {
	case f.kind == broken:
		return 0, OwnerMalformed
	case x.set.networks[a] == "third":
		rule = NetworkNotNamed
	case x.foreign(int(f.owner)) && f.kind == whole && !x.has(fromProcesses) && !(x.has(fromRecord) && x.set.networks[a] == network1):
		return 0, ForeignOwner
	case !speaks && !passes:
		return 0, NoSourceForNetwork
	case !speaks && !knows && !beforeBoot:
		return within, NotRecorded
	}
	if x.set.pathless && entry {
		if !x.has(fromRuntime) {
			return within, EntryUnproven
		}
		return x.starting, rule
	}
	quick := knows && x.has(fromProcesses)
	if quick {
		within = x.minAge
	}
	claimed := false
	for i, p := range s.pods {
		status := false
		for _, c := range s.conts {
			status = status || c.status && int(c.pod) == i && !x.set.more
		}
		since := s.wall[begunAt+i]
		claimed = claimed || p.there && !p.ended && !status && (at >= since-s.back-3 || since > now || x.set.static && i == 0)
		if p.ended {
			within += 300
		}
	}
	for i, g := range s.files { // hazard 84
		claimed = claimed || g.gen > 0 && g.kind%unreadable > 0 && s.at(i) != nil
	}
	if claimed && !quick && !beforeBoot && !(x.has(fromIntents) && x.set.networks[a] == network1) {
		if within = x.starting + 300; !x.has(fromRuntime) && !(x.has(fromRecord) && x.set.networks[a] == network1) && !knows {
			rule = StartingNoEnd
		}
	}
	return within, rule
}
