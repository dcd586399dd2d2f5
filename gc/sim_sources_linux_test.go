// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A simKind is a kind of source.
type simKind int

const (
	fromAPI simKind = iota
	fromKubelet
	fromRuntime
	fromRuntime2 // another one; each lists only its own sandboxes
	fromKernel   // addresses in network namespaces
	fromProcesses
	fromCache
	fromRecord
	fromIntents // a CNI server's ADDs in flight
)

var simKindNames = [...]string{"API server", "kubelet", "runtime", "second runtime", "kernel", "kernel with processes", "cache", "record", "intents"}

func (k simKind) String() string { return simKindNames[k] }

// simSets are sets of sources with which no live address may be released.
var simSets = [][]simKind{
	{fromKubelet, fromRuntime},
	{fromAPI, fromRuntime},
	{fromKubelet, fromRuntime, fromKernel},
	{fromKubelet, fromRuntime, fromProcesses},
	{fromKubelet},
	{fromAPI},
	{fromRuntime},
	{fromRecord, fromRuntime},
	{fromKernel, fromKubelet},
	{fromProcesses, fromCache},
	{fromProcesses, fromCache, fromKubelet},
	{fromProcesses, fromCache, fromKubelet, fromRuntime},
	{fromRecord, fromIntents},
	{fromRecord, fromIntents, fromKubelet},
	{fromRuntime, fromRuntime2, fromKubelet},
}

// A simSource is a source of the Reconciler.
type simSource struct {
	s    *simulation
	kind simKind
}

// Rank returns when it is asked: see podsource.Rank.
func (q simSource) Rank() podsource.Rank {
	return map[simKind]podsource.Rank{
		fromAPI: podsource.RankPods, fromKubelet: podsource.RankPods, fromRuntime: podsource.RankRuntime, fromRuntime2: podsource.RankRuntime,
		fromKernel: podsource.RankAddresses, fromProcesses: podsource.RankADDs, fromCache: podsource.RankCache, fromRecord: podsource.RankCache,
		fromIntents: podsource.RankADDs,
	}[q.kind]
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
	kind   simFaultKind
	source int // by index
	look   int
}

type simFaultKind int

const (
	noFault simFaultKind = iota
	faultError
	faultIncomplete
	faultEmpty
	faultPanic
	faultGoexit
	faultHang
	faultBadID
	faultFuture // the answer is dated in the future
	simFaults
)

var errAway = errors.New("source is away")

// Pods returns the answer. Operations may happen before and after.
func (q simSource) Pods(ctx context.Context) (podsource.Answer, error) {
	s, p := q.s, q.s.pass
	p.asking = true
	s.doNext()
	if p.looks == 0 || p.asked[q.kind] == p.looks {
		p.looks++
	}
	p.asked[q.kind] = p.looks
	answer := s.answerOf(q.kind)
	answer.Source = q.kind.String()
	var err error
	if f := s.fault; f.kind != noFault && s.config.sources[f.source%len(s.config.sources)] == q.kind && f.look == p.looks {
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

func (s *simulation) doFault(kind simFaultKind, a podsource.Answer) (podsource.Answer, error) {
	if kind == faultEmpty && (s.config.allowEmpty || a.Supplementary || a.Authoritative) {
		return a, nil // A2 excludes it
	}
	s.pass.faulted = s.pass.faulted || kind != faultFuture
	s.trace("source %s fails: %d", a.Source, kind)
	switch kind {
	case faultIncomplete:
		return a, podsource.ErrIncomplete
	case faultEmpty:
		return podsource.Answer{}, nil
	case faultPanic:
		panic("source panics")
	case faultGoexit:
		runtime.Goexit()
	case faultHang:
		s.pass.hang, s.pass.cancelled = s.pass.cancel, true
	case faultBadID:
		a.Pods = append(slices.Clone(a.Pods), podsource.Pod{ContainerIDs: []string{"containerd://1"}})
	case faultFuture:
		a.AsOf, s.pass.future = s.wall().Add(24*time.Hour), true
	default:
		return a, errAway
	}
	return a, nil
}

// answerOf returns the current answer of a kind of source.
func (s *simulation) answerOf(k simKind) (a podsource.Answer) {
	a.Networks = every
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
		a.Names = podsource.SandboxContainers
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
		a.Networks, a.Supplementary, a.SeesAddresses, a.Pods = nil, true, true, s.namespaces()
	case fromProcesses:
		a.Networks, a.Supplementary, a.SeesADDs, a.SeesAddresses = nil, true, every, true
		for _, b := range s.sandboxes {
			if b.inFlight() && !s.betweenPlugins(b) {
				a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{b.id}, Origin: "process of " + b.name})
			}
		}
		s.doNext() // processes are read before namespaces
		a.Pods = append(a.Pods, s.namespaces()...)
	case fromCache:
		a.Networks, a.Supplementary, a.Names, a.AtOnce = nil, true, podsource.AnyContainer, true
		a.Cache = &podsource.Cache{Since: s.recordedSince()}
		for _, b := range s.cached() {
			net := s.nets[b.net].name
			a.Cache.Entries = append(a.Cache.Entries, podsource.Attachment{Network: net, ContainerID: b.id})
			if owner := s.cache[b].owner; owner.alive {
				a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{b.id}, IPs: owner.ips(b.net), Network: net})
			}
		}
	case fromRecord:
		a.Networks, a.Authoritative = nil, true
		for _, n := range s.recordNetworks() {
			a.Networks = append(a.Networks, s.nets[n].name)
		}
		a.Names, a.AtOnce = podsource.AnyContainer, true
		for _, b := range s.sandboxes {
			for _, net := range s.recordNetworks() {
				if b.done && !b.foreign() && len(b.ips(net)) > 0 {
					a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{b.id}, IPs: b.ips(net), Network: s.nets[net].name})
				}
			}
		}
	case fromIntents:
		a.Networks, a.Supplementary, a.SeesADDs = nil, true, every
		for _, b := range s.sandboxes {
			if b.inFlight() {
				a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{b.id}})
			}
		}
	}
	return a
}

func (s *simulation) recordNetworks() []int {
	if s.config.recordAll {
		return []int{0, 1, 2}
	}
	return []int{0, 1}
}

// cached returns the keys of libcni's cache, sorted.
func (s *simulation) cached() (keys []simAttachment) {
	for k := range s.cache {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b simAttachment) int {
		if n := a.net - b.net; n != 0 {
			return n
		}
		return s.cache[a].owner.serial - s.cache[b].owner.serial
	})
	return keys
}

// recordedSince returns the time since which libcni's cache was not wiped, as far as its source
// knows from the entries of the last call.
func (s *simulation) recordedSince() time.Time {
	since, goesOn := time.Time{}, false
	for a, r := range s.cache {
		goesOn = goesOn || s.cacheSeen[a] == r
		if since.IsZero() || r.stamp.Before(since) {
			since = r.stamp
		}
	}
	if goesOn && s.cacheSince.Before(since) {
		since = s.cacheSince
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

// namespaces returns the network namespaces with their addresses. Half of the ADDs configure
// addresses while they are in flight.
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
	s.trace("status of %s: %v, ended %t", p.uid, p.statusIPs, p.ended)
}

// syncAPI updates the API server's list.
func (s *simulation) syncAPI() {
	s.api, s.apiAt = nil, s.now
	for _, p := range s.pods {
		s.api = append(s.api, p.status())
	}
}
