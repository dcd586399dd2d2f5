// SPDX-License-Identifier: Apache-2.0

package containerdtest

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

// pass does a pass, checks what it did, and returns what it left reserved beside
// the anchors.
func (s *seconds) pass() (left []gc.Entry) {
	began, power := time.Now(), s.power.Load()
	s.mu.Lock()
	s.looks = nil
	s.mu.Unlock()
	report, err := s.reconciler.Reconcile(context.WithoutCancel(s.t.Context()))
	s.mu.Lock()
	s.longest = max(s.longest, time.Since(began))
	looks := s.looks
	s.mu.Unlock()
	switch {
	case err == nil:
		s.count("passes")
	case errors.Is(err, gc.ErrRefused) && (power%2 == 1 || s.power.Load() != power):
		s.count("passes without an answer of the runtime")
	default:
		s.wrong(trouble, "pass: %v", err)
	}
	blind := err != nil
	for _, look := range looks {
		if err == nil && !s.sighted(look, report.Reservations) {
			blind = true
		}
	}
	if blind && err == nil {
		s.count("passes in which the cache is not proven")
	}
	for _, e := range report.Reservations {
		s.judge(e, began, looks, blind)
		if !slices.ContainsFunc(s.anchors, func(p pod) bool { return p.id == e.ContainerID }) && e.Verdict != gc.Released {
			left = append(left, e)
		}
	}
	return left
}

// judge checks an entry of a report.
func (s *seconds) judge(e gc.Entry, began time.Time, looks [][]podsource.Answer, blind bool) {
	id := e.ContainerID
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons[e.Reason]++
	if began.Sub(e.ReservedAt) >= secondsAge && !listed(looks, id) {
		s.late[id] = true
	}
	if e.Verdict == gc.InUse && began.Sub(e.ReservedAt) >= secondsAge && shownByCacheAlone(looks, e) {
		s.ledger.count(cacheAlone)
	}
	since, leaked := s.leaks[id]
	if e.Verdict != gc.Released {
		if leaked && !blind && began.Sub(since) >= secondsAge {
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

// sighted reports whether by a look the cache proves to be the node's: by its own
// rule, and not by what the pass made of it. No reserved address of a namespace may
// be without an entry, unless its owner's ADD is under way.
func (s *seconds) sighted(look []podsource.Answer, entries []gc.Entry) bool {
	inNamespace, known, sees := make(map[netip.Addr]bool), make(map[string]bool), 0
	for _, a := range look {
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

// listed reports whether the runtime listed a container in some look.
func listed(looks [][]podsource.Answer, id string) bool {
	for _, look := range looks {
		for _, a := range look {
			if a.Source == "cri" && slices.ContainsFunc(a.Pods, func(p podsource.Pod) bool { return slices.Contains(p.ContainerIDs, id) }) {
				return true
			}
		}
	}
	return false
}

// settle makes passes until only the anchors hold addresses. A plugin whose runtime
// was killed may take its time until then.
func (s *seconds) settle(reason string) {
	s.t.Helper()
	timeout := time.After(patience)
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
	same(s.t, "reservations", reason, holding(s.anchors...), s.n.reservations(s.network))
}

// check checks that something was proved.
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
			s.t.Errorf("nothing was proved: there were no %s", kind)
		}
	}
	if long && s.counted("pods") < 300 {
		s.t.Errorf("there were only %d pods", s.counted("pods"))
	}
	for _, p := range s.anchors {
		s.holds(p)
	}
	if alone {
		same(s.t, "addresses released", reason, 0, s.counted("addresses released"))
		if s.reasons[gc.NotYetListed] == 0 {
			s.t.Errorf("nothing was kept because the runtime may not list it yet: %v", s.reasons)
		}
	}
}

// tell prints the figures, also where .ci/run looks for them.
func (s *seconds) tell(name string, took time.Duration) {
	s.t.Helper()
	version, err := s.n.cri.Version(s.t.Context(), &runtimeapi.VersionRequest{})
	s.n.must(err)
	kept := make(map[string]int)
	for r, n := range s.reasons {
		kept[string(r)] = n
	}
	s.n.figure(fmt.Sprintf("Minimum age %v, %s, on %s %s: %v; the slowest leak went after %v, the longest pass took %v; verdicts %v, in %v",
		secondsAge, name, version.GetRuntimeName(), version.GetRuntimeVersion(), s.ledger,
		s.slowest.Round(100*time.Millisecond), s.longest.Round(100*time.Millisecond), kept, took.Round(time.Second)))
}
