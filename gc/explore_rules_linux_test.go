// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
)

// settle ends all faults, and fails unless then each leak is released in time, or a rule keeps it.
func (x *explorer) settle(s smallNode, stuck bool) {
	s.held = nil
	for k := range s.conts {
		s.end(k)
		x.apply(&s, "c# in runtime", k)
		x.apply(&s, "c# in status", k)
		s.files[k].kind %= unreadable
	}
	for i := range s.pods {
		s.pods[i].there = s.pods[i].there && (stuck || s.of(i) >= 0)
	}
	k := x.key(&s, nil)
	for first, waiting := s.now, !x.settled[k]; waiting && x.broken == ""; {
		x.settled[k], waiting = true, false
		before := s.smallWorld
		x.pass(&s, nil, occasion{inLoop: true}, false)
		for _, e := range x.report.Reservations {
			if a := slices.Index(smallIPs[:], e.IP); s.files[a].gen > 0 && s.at(a) < 0 {
				within, rule := x.keeps(&before, a)
				if late := s.now > first+within; !late {
					waiting = true
				} else if e.Reason != rule {
					x.violate("%v is leaked, and %d s after the last fault it is kept: %s, not %q", e.IP, s.now-first, e.Reason, rule)
				}
			}
		}
		pause := int64(300)
		if next := x.report.NextCheck; !next.IsZero() {
			pause = min(pause, max(15, int64(next.Sub(s.reading().wall).Seconds())+1))
		}
		x.advance(&s.smallWorld, pause)
	}
}

// keeps returns how long a leak may be kept on this very node, and by which rule for ever.
func (x *explorer) keeps(s *smallWorld, a int) (within int64, rule Reason) {
	f, at, now := s.files[a], s.wall[fileStamp+a], s.now+s.off
	has := func(i int) bool { return s.files[i].kind == whole && s.wall[contCached+int(s.files[i].owner)] > 0 }
	oldest, some, passes, claimed, ended := now, false, x.has(fromCache), false, int64(0)
	for i, p := range s.pods {
		if at := s.wall[contCached+i]; at > 0 {
			oldest = min(oldest, at)
		}
		if s.files[i].gen > 0 && x.set.networks[i] == x.set.networks[a] {
			some, passes = some || has(i), passes && (has(i) || s.at(i) < 0 || !x.visible(s.at(i)))
		}
		if p.ended {
			ended = 300
		}
		status := slices.ContainsFunc(s.conts[:], func(c smallContainer) bool { return c.status && int(c.pod) == i && !x.is("more") })
		start := s.wall[podStart+i]
		claimed = claimed || p.there && !p.ended && !status && (at >= start-s.back-3 || start > now || x.is("static") && i == 0) ||
			s.files[i].gen > 0 && s.files[i].kind%unreadable > 0 && s.at(i) >= 0 // hazard 84
	}
	passes, ended = passes && some, ended+300 // the interval
	beforeBoot := at < s.low-1 || at > s.due && at < s.booted+s.off-1
	knows := passes && (has(a) || s.stepAt == 0 && at >= s.booted+s.off && at <= now && at > oldest)
	speaks := x.has(fromKubelet) || x.recorded(a)
	switch {
	case f.kind == broken:
		return ended, OwnerMalformed
	case f.kind == whole && x.foreign(int(f.owner)) && !x.has(fromProcesses) && !x.recorded(a):
		return ended, ForeignOwner
	case !speaks && !passes:
		return ended, NoSourceForNetwork
	case !speaks && !knows && !beforeBoot:
		return x.lag + 300, NotRecorded
	case x.is("pathless") && has(a):
		return x.lag + 300, EntryUnproven
	case knows:
		return x.minAge + ended - 270, ""
	case claimed && !beforeBoot && x.has(fromRuntime):
		return x.starting + ended, ""
	case claimed && !beforeBoot && !x.recorded(a):
		return x.starting + ended, StartingNoEnd
	case x.set.networks[a] == "third":
		return x.lag + ended, NetworkNotNamed
	case claimed && !x.has(fromIntents):
		return x.starting + ended, ""
	}
	return x.lag + ended, ""
}
