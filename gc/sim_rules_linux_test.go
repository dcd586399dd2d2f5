// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// This file has what the simulation must not do, because A1 to A4 exclude it, and what it can't require of a pass. host-local's own code
// keeps A1.

const (
	maxStaleness = 50 * time.Second // of a list without a date
	dueMargin    = 90 * time.Second // maxStaleness, and the steps of simulated time
)

// due returns the age at which the sources must name a sandbox (A2, A3), a little less than L.
func (s *simulation) due() time.Duration { return s.opts.lag() - dueMargin }

// statusOnly reports whether only pods' statuses name the holders of addresses.
func (s *simulation) statusOnly() bool {
	return !s.has(fromRuntime, fromRuntime2, fromKernel, fromProcesses, fromCache, fromRecord)
}

// age returns the age of a sandbox to a pass: that of its youngest reservation (hazard 77), as of the start of the pass that is under
// way.
func (s *simulation) age(b *simSandbox) time.Duration {
	if s.pass == nil {
		return s.now - b.last
	}
	return s.now - cmp.Or(b.lastBefore, b.made)
}

// deadlines does what must have happened by now. It is called every ten seconds.
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
		// A pod with addresses in its status does not count as starting, so one of them must be this sandbox's.
		if p := b.pod; s.statusOnly() && !p.elsewhere && len(p.statusIPs) > 0 && !b.inStatus() {
			s.report(p, 0)
		}
	}
	// A finished pod holds its addresses for five minutes. If only its status names its sandbox, the sandbox is stopped by then (A2).
	for _, p := range s.pods {
		if s.statusOnly() && p.finished > 0 && s.now-p.finished >= holdFinished-dueMargin {
			s.stopAll(p, delLost, func(b *simSandbox) bool { return b.alive })
		}
	}
}

// inStatus reports whether the pod's status has an address of the sandbox.
func (b *simSandbox) inStatus() bool {
	return slices.ContainsFunc(b.addrs, func(a simAddress) bool { return slices.Contains(b.pod.statusIPs, a.ip) })
}

// knownStarting reports whether kubelet or the API server lists a sandbox's pod as starting (A3).
func (s *simulation) knownStarting(b *simSandbox) bool {
	return s.has(fromAPI, fromKubelet) && b.pod != nil && b.pod.starting() && slices.Contains(s.pods, b.pod)
}

// mayTakeLong reports whether an ADD may take longer than L: a source sees it, or its pod is known to be starting and no source ends that
// claim.
func (s *simulation) mayTakeLong(b *simSandbox) bool {
	return s.has(fromProcesses) || s.has(fromIntents) && !b.foreign() ||
		s.knownStarting(b) && !s.has(fromRuntime, fromRuntime2, fromCache, fromRecord)
}

// betweenPlugins reports whether an ADD in flight has no process in this look (hazard 72). That is so in at most one look of a pass. A
// pass takes two looks only for a MinAge below L and for R4's second end. So the ADD is younger than L, or its pod is known to be
// starting, and it takes no longer than any ADD (2 T, far less than StartingFor).
func (s *simulation) betweenPlugins(b *simSandbox) bool {
	age := s.now - b.made
	if age >= s.due() && !(s.knownStarting(b) && age < s.opts.StartingFor-dueMargin) {
		return false
	}
	n := (b.serial*7 + s.passes*13) % 6
	return n == s.pass.looks // in the first look, in the second, or in none
}

// canBeInvisible reports whether a namespace may show no address (hazard 59): another source must then name its container (A2).
func (s *simulation) canBeInvisible() bool { return s.has(fromRuntime, fromCache, fromRecord) }

// canLoseRecord reports whether the runtime may lose its record of a live sandbox (hazard 33): another source must then name it (A2).
func (s *simulation) canLoseRecord(b *simSandbox) bool {
	return b.alive && b.listed && b.done && !b.invisible && s.has(fromKernel, fromProcesses)
}

// canWipeCache reports whether libcni's cache may be wiped. If another source speaks of every network, that source must also name the
// containers whose namespaces show no address (A2), and so must one if the agent did not see a step of the clock since such a container
// was made (A4).
func (s *simulation) canWipeCache() bool {
	return s.has(fromRuntime) || !slices.ContainsFunc(s.sandboxes, func(b *simSandbox) bool {
		return b.alive && b.invisible && !b.freeText && (s.has(fromAPI, fromKubelet) || s.missedAt > 0 && b.made <= s.missedAt)
	})
}

// canForceDelete reports whether a pod may be removed from kubelet and the API server while its sandbox runs (hazard 35). Another source
// must name the sandbox, also if the pass under way has already asked that source (A2).
func (s *simulation) canForceDelete(p *simPod) bool {
	return !s.statusOnly() && !p.hostNetwork && !slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool {
		return b.inFlight() || b.alive && s.pass != nil && b.wasInFlight
	})
}

// canRestart reports whether the agent may restart. It can't notice a step of the clock from before its start. A4 excludes a step between
// a pod's start, or a reservation, and the time when the sandbox is named, and a step between the ends of a pod and its sandbox. No pod's
// start may be in the future by the new clock: its next reservation would be from before it (A3).
func (s *simulation) canRestart() bool {
	return s.canReboot() && (s.stepAt == 0 || s.remembered() || !slices.ContainsFunc(s.sandboxes, func(b *simSandbox) bool {
		since := b.made
		if b.pod != nil {
			since = min(since, b.pod.started)
		}
		return b.alive && since <= s.stepAt && !s.surelyNamed(b)
	}))
}

// canDamage reports whether a sandbox's file may be damaged: a source must show its address for as long as it lives (A3).
func (s *simulation) canDamage(b *simSandbox) bool {
	if !b.alive || !b.done || b.foreign() || s.shows(b) {
		return b.alive && b.done && !b.foreign()
	}
	p := b.pod
	return s.has(fromAPI, fromKubelet) && s.onDisk(b.addrs[0]) && slices.Contains(s.pods, p) && p.finished == 0 && !p.elsewhere &&
		b.addrs[0].net == 0 && !slices.ContainsFunc(b.ips(0), func(ip netip.Addr) bool { return !slices.Contains(p.statusIPs, ip) })
}

// shows reports whether the kernel shows a sandbox's addresses.
func (s *simulation) shows(b *simSandbox) bool {
	return s.has(fromKernel, fromProcesses) && !b.invisible
}

// needsStatus reports whether only a pod's status shows the address of one of its damaged files.
func (s *simulation) needsStatus(p *simPod) bool {
	return slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool {
		return b.alive && !s.shows(b) && slices.ContainsFunc(b.addrs, func(a simAddress) bool { return s.files[a] != nil && s.files[a].damaged })
	})
}

// ownerOf returns the sandbox that a file names.
func (f *simFile) ownerOf() *simSandbox {
	if f.damaged {
		return nil
	}
	return f.owner
}

// canReboot reports whether the node may boot. That ends all sandboxes, so of the conditions of canRestart only the last one counts.
func (s *simulation) canReboot() bool {
	return !slices.ContainsFunc(s.pods, func(p *simPod) bool { return !p.hostNetwork && p.startedAt.After(s.wall()) })
}

// surelyNamed reports whether a source names a sandbox, by ID or address, and will continue to.
func (s *simulation) surelyNamed(b *simSandbox) bool {
	switch {
	case b.freeText:
		return true // or rather kept
	case b.inFlight():
		return false
	case s.shows(b), s.has(fromRecord) && !b.foreign(), s.has(fromCache) && s.recorded(b):
		return true
	case b.foreign():
		return false
	case s.has(fromRuntime, fromRuntime2):
		return b.listed
	}
	return b.pod.finished == 0 && b.inStatus()
}

// recorded reports whether libcni's cache has a record of a sandbox in each of its networks.
func (s *simulation) recorded(b *simSandbox) bool {
	return !b.foreign() && !slices.ContainsFunc(b.addrs, func(a simAddress) bool { return s.cache[simAttachment{a.net, b.id}].owner == nil })
}

// canAssert reports whether the hook's assertion is true: no ADD is in flight, and a record or a cache names every container whose ADD
// has ended (R5).
func (s *simulation) canAssert() bool {
	return s.has(fromRecord, fromCache) && !slices.ContainsFunc(s.sandboxes, (*simSandbox).inFlight)
}

// foreignNetworks returns the networks in which another tool may run containers: none of which a record has all containers, and none if
// intents have all ADDs (A2).
func (s *simulation) foreignNetworks() []int {
	switch record := s.has(fromRecord); {
	case s.has(fromIntents), record && s.config.recordAll:
		return nil
	case record:
		return []int{2}
	}
	return []int{0, 2}
}

// canRunForeign reports whether the other tool's containers may be live: if the caller allows their form, a source must name them.
func (s *simulation) canRunForeign() bool {
	return !s.config.allowForeign || s.has(fromKernel, fromProcesses)
}

// mustRelease reports whether passes must release a leak after the last fault.
func (s *simulation) mustRelease(a simAddress) bool {
	f := s.files[a]
	owner := f.ownerOf()
	switch {
	case a.net >= simNamed, !s.spokenOf(a), owner != nil && owner.freeText, // R14
		owner != nil && owner.foreign() && !s.has(fromKernel, fromProcesses) && !s.config.allowForeign, // R14
		owner == nil && !f.empty,                  // R7: malformed
		s.claimedByStarting(a) && !s.claimEnds(a): // R4
		return false
	case owner == nil:
		return !s.claimedElsewhere(a)
	}
	// R10: an address in conflict keeps all addresses of its container.
	return !slices.ContainsFunc(owner.addrs, s.claimedElsewhere)
}

// spokenOf reports whether some source speaks of a reservation.
func (s *simulation) spokenOf(a simAddress) bool {
	return s.has(fromAPI, fromKubelet, fromRuntime, fromRuntime2) || s.recordNames(a) || s.cacheNames(a)
}

// cacheNames reports whether libcni's cache would name the container of a reservation, and will continue to.
func (s *simulation) cacheNames(a simAddress) bool {
	f, since := s.files[a], s.recordedSince()[simNetworks[a.net]]
	owner := f.ownerOf()
	return s.cacheProves(a.net) && (owner != nil && s.cache[simAttachment{a.net, owner.id}].owner != nil || s.beforeBoot(owner) ||
		s.stepAt == 0 && !s.config.noBoot && !since.IsZero() && f.stamp.After(since.Add(granularity(since))))
}

// beforeBoot reports whether a sandbox is surely from before the boot.
func (s *simulation) beforeBoot(b *simSandbox) bool {
	return b != nil && b.last < s.bootedAt-time.Second && !s.config.noBoot && s.stepAt == 0
}

// recordNames reports whether an agent's record would name the container of a reservation.
func (s *simulation) recordNames(a simAddress) bool {
	return s.has(fromRecord) && slices.Contains(s.recordNetworks(), a.net)
}

// cacheProves reports whether libcni's cache passes its check for a network, and will continue to.
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
		if a.net == net && seen[a.ip] && (f.ownerOf() == nil || s.cache[simAttachment{net, f.owner.id}].owner == nil) {
			return false
		}
	}
	return some
}

// claimedByStarting reports whether a pod that counts as starting may hold a reservation.
func (s *simulation) claimedByStarting(a simAddress) bool {
	owner := s.files[a].ownerOf()
	for damaged, f := range s.files { // hazard 84
		if f.ownerOf() == nil && s.claimed(damaged.ip, simAddress{}) {
			return true
		}
	}
	return s.has(fromAPI, fromKubelet) && slices.ContainsFunc(s.pods, func(p *simPod) bool {
		return p.starting() && (p.static || s.stepAt > 0 || owner == nil || p.started-time.Second <= owner.last)
	})
}

// claimEnds reports whether such a claim ends (R4): by a source that would name the owner, or since the reservation is from before the
// boot.
func (s *simulation) claimEnds(a simAddress) bool {
	owner := s.files[a].ownerOf()
	return s.has(fromRuntime, fromRuntime2) && (owner == nil || !owner.foreign()) ||
		s.recordNames(a) || s.cacheNames(a) || s.beforeBoot(owner)
}

// claimedElsewhere reports whether a live sandbox has the same address in another network, which sources may not name (hazard 69).
func (s *simulation) claimedElsewhere(a simAddress) bool { return s.claimed(a.ip, a) }

// claimed reports whether a live sandbox has an address, in whatever network but one.
func (s *simulation) claimed(ip netip.Addr, but simAddress) bool {
	return slices.ContainsFunc(s.sandboxes, func(b *simSandbox) bool {
		return b.alive && slices.ContainsFunc(b.addrs, func(o simAddress) bool { return o.ip == ip && o != but })
	})
}
