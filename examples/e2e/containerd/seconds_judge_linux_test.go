// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// pass runs a pass, checks its report, and returns the entries that it kept, without those of
// the permanent pods.
func (s *seconds) pass() (left []gc.Entry) {
	began, epoch := time.Now(), s.epoch.Load()
	s.mu.Lock()
	s.answers = nil
	s.mu.Unlock()
	report, err := s.reconciler.Reconcile(context.WithoutCancel(s.t.Context()))
	s.mu.Lock()
	s.longest = max(s.longest, time.Since(began))
	answers := s.answers
	s.mu.Unlock()
	switch {
	case err == nil:
		s.count("passes")
	case errors.Is(err, gc.ErrRefused) && (epoch%2 == 1 || s.epoch.Load() != epoch):
		s.count("passes without an answer of the runtime")
	default:
		s.wrong(trouble, "pass: %v", err)
	}
	unproven := err != nil
	for _, members := range answers {
		if err == nil && !s.cacheProven(members, report.Reservations) {
			unproven = true
		}
	}
	if unproven && err == nil {
		s.count("passes in which the cache is not proven")
	}
	for _, e := range report.Reservations {
		s.checkEntry(e, began, answers, unproven)
		if !slices.ContainsFunc(s.permanent, func(p pod) bool { return p.id == e.ContainerID }) && e.Verdict != gc.Released {
			left = append(left, e)
		}
	}
	return left
}

// checkEntry checks an entry of a report.
func (s *seconds) checkEntry(e gc.Entry, began time.Time, answers [][]podsource.Answer, unproven bool) {
	id := e.ContainerID
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons[e.Reason]++
	if began.Sub(e.ReservedAt) >= secondsAge && !listed(answers, id) {
		s.late[id] = true
	}
	if e.Verdict == gc.InUse && began.Sub(e.ReservedAt) >= secondsAge && shownByCacheAlone(answers, e) {
		s.ledger.count(cacheAlone)
	}
	since, leaked := s.leaks[id]
	if e.Verdict != gc.Released {
		if leaked && !unproven && began.Sub(since) >= secondsAge {
			s.wrong("leaks kept", "%s of %s, which leaked %v before the pass: %v, %v", e.IP, id, began.Sub(since), e.Reason, e.Pod)
		}
		return
	}
	if s.live[id] {
		s.wrong(liveReleased, "%s of %s", e.IP, id)
	}
	if !s.released[id] && leaked {
		took := time.Since(since)
		s.slowest = max(s.slowest, took)
		if took > 10*time.Second {
			s.ledger.count(lateLeaks)
		}
	}
	s.released[id] = true
	s.ledger.count("addresses released")
}

// cacheProven reports whether the answers prove that the cache is the node's: each reserved
// address in a network namespace has an entry of its owner, or the ADD of the owner is in
// flight. The test applies this rule independently of the pass.
func (s *seconds) cacheProven(members []podsource.Answer, entries []gc.Entry) bool {
	inNamespace, known, sees := make(map[netip.Addr]bool), make(map[string]bool), 0
	for _, a := range members {
		for _, r := range a.Recorded {
			known[r.ContainerID] = known[r.ContainerID] || r.Network == s.network
		}
		for _, p := range a.Pods {
			for _, ip := range p.IPs {
				inNamespace[ip] = inNamespace[ip] || a.SeesAddresses
			}
			for _, id := range p.ContainerIDs {
				known[id] = known[id] || a.SeesADDs
			}
		}
		if a.SeesAddresses || a.SeesADDs {
			sees++
		}
	}
	return sees == 2 && !slices.ContainsFunc(entries, func(e gc.Entry) bool {
		return inNamespace[e.IP] && !known[e.ContainerID]
	})
}

// listed reports whether the runtime listed a container in one of the answers.
func listed(answers [][]podsource.Answer, id string) bool {
	for _, members := range answers {
		for _, a := range members {
			if a.Source == "cri" && slices.ContainsFunc(a.Pods, func(p podsource.Pod) bool { return slices.Contains(p.ContainerIDs, id) }) {
				return true
			}
		}
	}
	return false
}

// awaitReleases runs passes until only the permanent pods hold addresses. A plugin whose runtime
// was killed may run on for a while.
func (s *seconds) awaitReleases(reason string) {
	s.t.Helper()
	timeout := time.After(maxWait)
	for {
		left := s.pass()
		if len(left) == 0 {
			break
		}
		select {
		case <-timeout:
			for _, e := range left {
				s.t.Errorf("%s: %s of %s, reserved at %v, is still kept: %v, %v", reason, e.IP, e.ContainerID, e.ReservedAt, e.Reason, e.Pod)
			}
			return
		default:
		}
	}
	same(s.t, "reservations", reason, holding(s.permanent...), s.n.reservations(s.network))
}

// check checks that all kinds of pods occurred.
func (s *seconds) check(reason string, alone, long bool) {
	s.t.Helper()
	must := []string{"pods", "slow pods", "kept pods", "leaky pods", "passes"}
	if s.n.name == current().name {
		must = append(must, unlisted)
	}
	if !alone && s.n.name == current().name {
		must = append(must, "addresses released under load")
	}
	if s.n.gvisor {
		must = append(must, "gVisor pods", cacheAlone)
	}
	for _, kind := range must {
		if s.counted(kind) == 0 {
			s.t.Errorf("the test shows nothing: there were no %s", kind)
		}
	}
	if long && s.counted("pods") < 300 {
		s.t.Errorf("there were only %d pods", s.counted("pods"))
	}
	for _, p := range s.permanent {
		s.holds(p)
	}
	if alone {
		same(s.t, "addresses released", reason, 0, s.counted("addresses released"))
		if s.reasons[gc.NotYetListed] == 0 {
			s.t.Errorf("no reservation was kept as not-yet-listed: %v", s.reasons)
		}
	}
}

// report prints the figures, also to the file of .ci/run.
func (s *seconds) report(name string, took time.Duration) {
	s.t.Helper()
	version, err := s.n.cri.Version(s.t.Context(), &runtimeapi.VersionRequest{})
	s.n.must(err)
	kept := make(map[string]int)
	for r, n := range s.reasons {
		kept[string(r)] = n
	}
	fmt.Printf("Minimum age %v, %s, on %s %s: %v; the slowest leak was released after %v, the longest pass took %v; verdicts %v, in %v\n",
		secondsAge, name, version.GetRuntimeName(), version.GetRuntimeVersion(), s.ledger,
		s.slowest.Round(100*time.Millisecond), s.longest.Round(100*time.Millisecond), kept, took.Round(time.Second))
}
