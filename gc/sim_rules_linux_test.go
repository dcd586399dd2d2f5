// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"slices"
	"time"
)

// This file has all that the simulation must not do, because A1 to A4 exclude
// it, and what it can't ask of a pass. A1 is kept by host-local's own code.

const (
	maxStaleness = 50 * time.Second // of a list that does not say how old it is
	dueMargin    = 90 * time.Second // maxStaleness, and the grain of simulated time
)

// due is the age at which a sandbox must be named by its sources (A2, A3): a
// little less than L.
func (s *simulation) due() time.Duration { return s.opts.lag() - dueMargin }

// statusOnly says that only the pods' own status names who holds what.
func (s *simulation) statusOnly() bool {
	return !s.has(fromRuntime, fromRuntime2, fromKernel, fromProcesses, fromCache, fromRecord)
}

// age is the age of a sandbox as a pass sees it: that of its youngest reservation
// (hazard 77), but for those which the pass may have listed too early to see.
func (s *simulation) age(b *simSandbox) time.Duration {
	if s.pass == nil {
		return s.now - b.last
	}
	if last, ok := s.pass.last[b]; ok {
		return s.now - last
	}
	return s.now - b.made
}

// deadlines does by force what must have happened by now. It is called every ten
// seconds.
func (s *simulation) deadlines() {
	for _, b := range slices.Clone(s.sandboxes) {
		if !b.alive || len(b.addrs) == 0 || s.age(b) < s.due() {
			continue
		}
		if b.inFlight() && !s.mayTakeLong(b) {
			s.finishADD(b)
		}
		if b.foreign() || b.inFlight() || !b.alive {
			continue
		}
		// A3: the runtime lists it no later than L after its reservation.
		if !b.lost {
			b.listed = true
		}
		// A pod whose status has addresses is not taken for a starting one, so one
		// of them must be this sandbox's.
		if p := b.pod; s.statusOnly() && !p.elsewhere && len(p.statusIPs) > 0 && !b.inStatus() {
			s.report(p, 0)
		}
	}
	// A finished pod holds what it names for five minutes. Where nothing but its
	// status names its sandbox, that is gone by then (A2).
	for _, p := range s.pods {
		if !s.statusOnly() || p.finished == 0 || s.now-p.finished < holdFinished-dueMargin {
			continue
		}
		for _, b := range slices.Clone(p.sandboxes) {
			if b.alive {
				s.stop(b, delLost)
			}
		}
	}
}

// inStatus says whether its pod's status has one of its addresses.
func (b *simSandbox) inStatus() bool {
	return slices.ContainsFunc(b.addrs, func(a simAddress) bool { return slices.Contains(b.pod.statusIPs, a.ip) })
}

// knownStarting says whether kubelet and the API server tell of its pod as of
// one that is starting (A3).
func (s *simulation) knownStarting(b *simSandbox) bool {
	return s.has(fromAPI, fromKubelet) && b.pod != nil && b.pod.finished == 0 && slices.Contains(s.pods, b.pod) &&
		(len(b.pod.statusIPs) == 0 || b.pod.elsewhere)
}

// mayTakeLong says whether an ADD may take longer than L: its process is seen,
// or its pod is known to be starting and no source's silence ends that.
func (s *simulation) mayTakeLong(b *simSandbox) bool {
	if s.has(fromProcesses) || s.has(fromIntents) && !b.foreign() {
		return true
	}
	return s.knownStarting(b) && !s.has(fromRuntime, fromRuntime2, fromCache, fromRecord)
}

// betweenPlugins says whether an ADD in flight has no process at the very moment
// of this look (hazard 72). Two looks in a row don't meet such a moment; and as
// only what R5 sets below L, or what R4's second end lets go, is looked at twice,
// it is not older than L unless its pod is known to be starting, and never older
// than an ADD can be (2 T, far less than StartingFor).
func (s *simulation) betweenPlugins(b *simSandbox) bool {
	age := s.now - b.made
	if age >= s.due() && !(s.knownStarting(b) && age < s.opts.StartingFor-dueMargin) {
		return false
	}
	n := (b.serial*7 + s.passes*13) % 6
	return n == s.pass.looks // in the first look, in the second, or in none
}

// canBeInvisible says whether a sandbox may have a namespace that shows no
// address (hazard 59): then another source has to name its container (A2).
func (s *simulation) canBeInvisible() bool {
	return s.has(fromRuntime, fromCache, fromRecord)
}

// canLoseRecord says whether the runtime may lose its record of a sandbox that
// lives on (hazard 33): another source has to name it (A2).
func (s *simulation) canLoseRecord(b *simSandbox) bool {
	return s.has(fromKernel, fromProcesses) && !b.invisible && b.done
}

// canWipeCache says whether libcni's cache may be wiped: where another source
// speaks of every network, that has to name what is in no namespace either (A2).
func (s *simulation) canWipeCache() bool {
	return s.has(fromRuntime) || !s.has(fromAPI, fromKubelet) || !slices.ContainsFunc(s.sandboxes, func(b *simSandbox) bool { return b.alive && b.invisible })
}

// canForceDelete says whether a pod may go from kubelet and the API server while
// its sandbox runs on (hazard 35): another source has to name that, also one that
// was already asked in the pass which is under way (A2).
func (s *simulation) canForceDelete(p *simPod) bool {
	return !s.statusOnly() && !p.hostNetwork && !slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool {
		return b.inFlight() || b.alive && s.pass != nil && s.pass.inFlight[b]
	})
}

// canRestart says whether the agent may start anew: a step of the clock from
// before its start it can't see. A4 excludes one between the start of a pod, or
// a reservation, and the moment when the sandbox is named; and one between the
// end of a pod and that of its sandbox. A pod's start must not lie in the future
// by the new clock: its next reservation would be from before it (A3).
func (s *simulation) canRestart() bool {
	return s.canReboot() && (s.stepAt == 0 || !slices.ContainsFunc(s.sandboxes, func(b *simSandbox) bool {
		since := b.made
		if b.pod != nil {
			since = min(since, b.pod.started)
		}
		return b.alive && since <= s.stepAt && !s.surelyNamed(b)
	}))
}

// canReboot says whether the node may boot, which no sandbox outlives: only the
// last of these matters then.
func (s *simulation) canReboot() bool {
	return !slices.ContainsFunc(s.pods, func(p *simPod) bool { return !p.hostNetwork && p.startedAt.After(s.wall()) })
}

// surelyNamed says whether a source names a sandbox, by ID or address, and will
// go on to.
func (s *simulation) surelyNamed(b *simSandbox) bool {
	switch {
	case b.inFlight():
		return false
	case s.has(fromKernel, fromProcesses) && !b.invisible, s.has(fromCache, fromRecord) && !b.foreign():
		return true
	case b.foreign():
		return false
	case s.has(fromRuntime, fromRuntime2):
		return b.listed
	}
	return b.pod.finished == 0 && b.inStatus()
}

// canAssert says whether the hook's assertion holds: no ADD is in flight, and
// every container whose ADD has ended is named by a record or a cache (R5).
func (s *simulation) canAssert() bool {
	return s.has(fromRecord, fromCache) && !slices.ContainsFunc(s.sandboxes, (*simSandbox).inFlight)
}

// canStep says whether the clock may be set: a step while the process runs is
// seen (A4), and two between two readings might cancel each other out.
func (s *simulation) canStep() bool { return !(s.pass != nil && s.unread) }

// foreignNetworks are those in which a second tool may run containers: where a
// record names all containers of a network there are no others (A2).
func (s *simulation) foreignNetworks() []int {
	switch {
	case s.has(fromIntents): // they would have to show the second tool's ADDs too
		return nil
	case !s.has(fromRecord):
		return []int{0, 2}
	case s.config.recordAll:
		return nil
	}
	return []int{2}
}

// canRunForeign says whether the second tool's containers may live: where the
// caller allows their form, some source has to name them.
func (s *simulation) canRunForeign() bool {
	return !s.config.allowForeign || s.has(fromKernel, fromProcesses)
}

// mustGo says whether passes must release what is leaked, once nothing is wrong
// with the sources any more.
func (s *simulation) mustGo(a simAddress) bool {
	f := s.files[a]
	switch {
	case a.net >= simNamed, !s.spokenOf(a): // R14
		return false
	case f.owner == nil && !f.empty: // R7: malformed
		return false
	case f.owner != nil && f.owner.foreign() && !s.has(fromKernel, fromProcesses) && !s.config.allowForeign: // R14
		return false
	case s.claimedByStarting(a) && !s.claimEnds(a): // R4
		return false
	case f.owner == nil:
		return !s.claimedElsewhere(a)
	}
	// R10: an address in conflict holds all of its container's.
	return !slices.ContainsFunc(f.owner.addrs, s.claimedElsewhere)
}

// spokenOf says whether some source speaks of a reservation.
func (s *simulation) spokenOf(a simAddress) bool {
	return s.has(fromAPI, fromKubelet, fromRuntime, fromRuntime2) || s.has(fromRecord) && slices.Contains(s.recordNetworks(), a.net) || s.cacheNames(a)
}

// cacheNames says whether libcni's cache would name the container of a
// reservation, and will go on to.
func (s *simulation) cacheNames(a simAddress) bool {
	f, since := s.files[a], s.recordedSince()
	return s.cacheProves(a.net) && (f.owner != nil && s.cache[simAttachment{a.net, f.owner.id}].owner != nil ||
		s.stepAt == 0 && (!since.IsZero() && f.stamp.After(since.Add(granularity(since))) ||
			f.owner != nil && f.owner.last < s.bootedAt-time.Second && !s.config.noBoot))
}

// cacheProves says whether libcni's cache passes its check for a network, and
// will go on to.
func (s *simulation) cacheProves(net int) bool {
	if !s.has(fromCache) {
		return false
	}
	seen := make(map[netip.Addr]bool)
	some := false
	for _, b := range s.sandboxes {
		for _, a := range b.addrs {
			if b.alive {
				seen[a.ip] = seen[a.ip] || !b.invisible
				some = some || a.net == net && s.cache[simAttachment{net, b.id}].owner != nil
			}
		}
	}
	for a, f := range s.files {
		if a.net == net && seen[a.ip] && (f.owner == nil || s.cache[simAttachment{net, f.owner.id}].owner == nil) {
			return false
		}
	}
	return some
}

// claimedByStarting says whether a pod that is starting, or counts as one that
// is, may own a reservation.
func (s *simulation) claimedByStarting(a simAddress) bool {
	owner := s.files[a].owner
	return s.has(fromAPI, fromKubelet) && slices.ContainsFunc(s.pods, func(p *simPod) bool {
		return !p.hostNetwork && p.finished == 0 && (len(p.statusIPs) == 0 || p.elsewhere) &&
			(p.static || s.stepAt > 0 || owner == nil || p.started-time.Second <= owner.last)
	})
}

// claimEnds says whether some source's silence ends such a claim (R4), or that
// it is from before the node booted.
func (s *simulation) claimEnds(a simAddress) bool {
	owner := s.files[a].owner
	return s.has(fromRuntime, fromRuntime2) && (owner == nil || !owner.foreign()) ||
		s.has(fromRecord) && slices.Contains(s.recordNetworks(), a.net) || s.cacheNames(a) ||
		owner != nil && owner.last < s.bootedAt-time.Second && !s.config.noBoot && s.stepAt == 0
}

// claimedElsewhere says whether the same address lives in another network, by a
// source that does not say which (hazard 69).
func (s *simulation) claimedElsewhere(a simAddress) bool {
	return slices.ContainsFunc(s.sandboxes, func(b *simSandbox) bool {
		return b.alive && slices.ContainsFunc(b.addrs, func(o simAddress) bool { return o.ip == a.ip && o != a })
	})
}
