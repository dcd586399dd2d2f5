// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A simKind is a kind of source. Its name is that in cases.
type simKind string

const (
	fromAPI       simKind = "plain"
	fromKubelet   simKind = "kubelet"
	fromRuntime   simKind = "cri"
	fromRuntime2  simKind = "cri2"   // another one; each lists only its own sandboxes
	fromKernel    simKind = "netns2" // addresses in network namespaces
	fromProcesses simKind = "netns"
	fromCache     simKind = "cache"
	fromRecord    simKind = "record"
	fromIntents   simKind = "plain2" // a CNI server's ADDs in flight
)

// simSets are sets of sources with which no live address may be released.
var simSets = [][]simKind{
	{fromKubelet, fromRuntime}, {fromAPI, fromRuntime}, {fromKubelet, fromRuntime, fromKernel}, {fromKubelet, fromRuntime, fromProcesses},
	{fromKubelet}, {fromAPI}, {fromRuntime}, {fromRecord, fromRuntime}, {fromKernel, fromKubelet},
	{fromProcesses, fromCache}, {fromProcesses, fromCache, fromKubelet}, {fromProcesses, fromCache, fromKubelet, fromRuntime},
	{fromRecord, fromIntents}, {fromRecord, fromIntents, fromKubelet}, {fromRuntime, fromRuntime2, fromKubelet},
}

// A simSource is a source of the Reconciler.
type simSource struct {
	s    *simulation
	kind simKind
}

// Rank returns when it is asked: see podsource.Rank.
func (q simSource) Rank() podsource.Rank {
	return map[simKind]podsource.Rank{fromRuntime: podsource.RankRuntime, fromRuntime2: podsource.RankRuntime,
		fromKernel: podsource.RankAddresses, fromProcesses: podsource.RankADDs, fromCache: podsource.RankCache,
		fromRecord: podsource.RankCache, fromIntents: podsource.RankADDs, fromAPI: podsource.RankPods, fromKubelet: podsource.RankPods}[q.kind]
}

// source returns the union of the config's sources.
func (s *simulation) source() podsource.Source {
	var all []podsource.Source
	for _, k := range s.config.sources {
		all = append(all, simSource{s, k})
		if s.config.allowEmpty {
			all[len(all)-1] = podsource.AllowEmpty(all[len(all)-1])
		}
	}
	if len(all) > 2 { // nested, which must not matter
		all = []podsource.Source{podsource.Union(all[0], all[1]), podsource.Union(all[2:]...)}
	}
	return podsource.Union(all...)
}

// A simFault is a fault of a source in the next pass.
type simFault struct {
	kind   string // one of simFaults, or none
	source int    // by index
	look   int
}

var simFaults = []string{"error", "empty", "hang"}

// Pods returns the answer. Operations may happen before and after.
func (q simSource) Pods(ctx context.Context) (podsource.Answer, error) {
	s, p := q.s, q.s.pass
	if p.looks == 0 || p.asked[q.kind] == p.looks {
		p.looks++
		if s.tell(); !p.hook && (p.looks > 1 || len(p.inner) > 0) {
			s.told.prefix = []string{"asked: ", "again: "}[p.looks-1]
		}
	}
	p.asked[q.kind], p.asking = p.looks, true
	s.doNext()
	answer := s.answerOf(q.kind)
	s.tellAnswer(q.kind, answer)
	var err error
	if f := s.fault; s.config.sources[f.source%len(s.config.sources)] == q.kind && f.look == p.looks {
		answer, err = s.doFault(f.kind, answer)
	}
	s.doNext()
	if hang := p.hang; hang != nil { // at the end, since the pass may go on concurrently
		hang()
		<-ctx.Done()
		return podsource.Answer{}, ctx.Err()
	}
	p.asking = false
	return answer, err
}

func (s *simulation) doFault(kind string, a podsource.Answer) (podsource.Answer, error) {
	if kind == "" || kind == "empty" && (s.config.allowEmpty || a.Supplementary || a.Authoritative) {
		return a, nil // A2 excludes it
	}
	s.pass.faulted = true
	switch kind {
	case "empty":
		return podsource.Answer{}, nil
	case "hang":
		s.pass.hang, s.pass.cancelled = s.pass.cancel, true
		return a, nil
	}
	return a, errAway
}

// answerOf returns the current answer of a kind of source.
func (s *simulation) answerOf(k simKind) podsource.Answer {
	a := k.declared()
	switch k {
	case fromAPI:
		if s.config.asOf {
			a.AsOf = simProcess.Add(s.apiAt)
		} else if s.now-s.apiAt > maxStaleness {
			s.syncAPI()
		}
		a.Pods = s.api
	case fromKubelet:
		for _, p := range s.pods {
			a.Pods = append(a.Pods, p.status())
		}
	case fromRuntime, fromRuntime2:
		for _, b := range s.sandboxes {
			if b.listed && b.pod.second == (k == fromRuntime2) {
				a.Pods = append(a.Pods, podsource.Pod{UID: types.UID(b.pod.uid), ContainerIDs: []string{b.id}})
			}
		}
		for _, p := range s.pods {
			if p.hostNetwork && p.second == (k == fromRuntime2) {
				a.Pods = append(a.Pods, podsource.Pod{UID: types.UID(p.uid), ContainerIDs: []string{p.uid}, HostNetwork: true})
			}
		}
	case fromKernel:
		a.SeesADDs, a.Pods = nil, s.namespaces()
	case fromProcesses:
		a.Pods = s.adding(s.betweenPlugins)
		s.doNext() // processes are read before namespaces
		a.Pods = append(a.Pods, s.namespaces()...)
	case fromCache:
		a.Cache = &podsource.Cache{Since: s.recordedSince()}
		for _, b := range s.cached() {
			net := simNetworks[b.net]
			a.Cache.Entries = append(a.Cache.Entries, podsource.Attachment{Network: net, ContainerID: b.id})
			if owner := s.cache[b].owner; owner.alive {
				a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{b.id}, IPs: owner.ips(b.net), Network: net})
			}
		}
	case fromRecord:
		a.Networks = nil
		for _, n := range s.recordNetworks() {
			a.Networks = append(a.Networks, simNetworks[n])
		}
		for _, b := range s.sandboxes {
			for _, net := range s.recordNetworks() {
				if b.done && !b.foreign() && len(b.ips(net)) > 0 {
					a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{b.id}, IPs: b.ips(net), Network: simNetworks[net]})
				}
			}
		}
	case fromIntents:
		a.Networks, a.Supplementary, a.SeesADDs, a.Pods = nil, true, every, s.adding(nil)
	}
	return a
}

// declared returns what a kind of source declares, without pods.
func (k simKind) declared() podsource.Answer {
	a := Declared[strings.TrimRight(string(k), "2")]()
	a.Source, a.Pods = string(k), nil
	return a
}

// adding returns ADDs in flight.
func (s *simulation) adding(hidden func(*simSandbox) bool) (pods []podsource.Pod) {
	for _, b := range s.sandboxes {
		if b.inFlight() && (hidden == nil || !hidden(b)) {
			pods = append(pods, podsource.Pod{ContainerIDs: []string{b.id}, Origin: "process of " + b.name})
		}
	}
	return pods
}

func (s *simulation) recordNetworks() []int {
	if s.config.recordAll {
		return []int{0, 1, 2}
	}
	return []int{0, 1}
}

// cached returns the keys of libcni's cache, sorted.
func (s *simulation) cached() []simAttachment {
	return slices.SortedFunc(maps.Keys(s.cache), func(a, b simAttachment) int {
		return cmp.Or(a.net-b.net, s.cache[a].owner.serial-s.cache[b].owner.serial)
	})
}

// recordedSince returns since when libcni's cache was not wiped, by network, as far as its source knows from the entries of the last call.
func (s *simulation) recordedSince() map[string]time.Time {
	since := make(map[string]time.Time)
	for a, r := range s.cache {
		network, at := simNetworks[a.net], r.stamp
		if last := s.cacheSince[network]; s.cacheSeen[a] == r && last.Before(at) {
			at = last
		}
		if oldest, has := since[network]; !has || at.Before(oldest) {
			since[network] = at
		}
	}
	s.cacheSince, s.cacheSeen = since, maps.Clone(s.cache)
	return since
}

// ips returns a sandbox's addresses in one network.
func (b *simSandbox) ips(net int) (ips []netip.Addr) {
	for _, a := range b.addrs {
		if a.net == net {
			ips = append(ips, a.ip)
		}
	}
	return ips
}

// namespaces returns the network namespaces with their addresses. Half of the ADDs configure addresses while they are in flight.
func (s *simulation) namespaces() (pods []podsource.Pod) {
	for _, b := range s.sandboxes {
		if b.invisible || !b.alive || b.inFlight() && b.serial%2 == 0 {
			continue
		}
		p := podsource.Pod{Origin: "namespace of " + b.name}
		for _, a := range b.addrs {
			p.IPs = append(p.IPs, a.ip)
		}
		if len(p.IPs) > 0 {
			pods = append(pods, p)
		}
	}
	return pods
}

// status returns a pod as kubelet and the API server list it.
func (p *simPod) status() podsource.Pod {
	out := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: p.name}, UID: types.UID(p.uid),
		IPs: slices.Clone(p.statusIPs), HostNetwork: p.hostNetwork, MoreIPs: p.elsewhere, Finished: p.ended,
	}
	if p.hostNetwork {
		out.IPs = []netip.Addr{netip.MustParseAddr("10.1.0.3")} // the node's, which claims nothing (hazard 28)
	}
	if p.ended && !p.noEnd {
		out.FinishedAt = p.finishedAt
	}
	if p.reported && !p.static {
		out.StartedAt = p.startedAt.Truncate(time.Second)
	}
	return out
}

// report updates a pod's status: with all addresses, with one, or only with its start.
func (s *simulation) report(p *simPod, part uint32) {
	p.reported, p.ended = true, p.finished > 0
	if part%3 == 2 && len(p.statusIPs) == 0 {
		return // no addresses yet
	}
	var ips []netip.Addr
	for _, b := range p.sandboxes {
		if b.alive && b.done {
			ips = append(ips, b.ips(0)...) // the other networks are in no status
			if p.elsewhere {
				ips = append(ips, netip.AddrFrom4([4]byte{192, 0, 2, byte(b.serial)}))
			}
		}
	}
	if part%3 == 1 && len(ips) > 1 && !s.needsStatus(p) {
		ips = ips[:1]
	}
	if len(ips) > 0 {
		p.statusIPs = ips
	}
}

// syncAPI updates the API server's list.
func (s *simulation) syncAPI() {
	s.api, s.apiAt = nil, s.now
	for _, p := range s.pods {
		s.api = append(s.api, p.status())
	}
}
