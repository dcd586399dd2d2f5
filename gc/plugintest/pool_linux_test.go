// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package plugintest_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const (
	poolSize = 13           // the addresses of a /28
	retries  = poolSize - 2 // of pod app, each of which leaks an address; web and slow have the others
	// In minutes: StartingFor, before which a starting pod's claim does not end, and L, which is
	// MinAge, too.
	startingFor = int(gc.DefaultStartingFor / time.Minute)
	lag         = int(gc.DefaultMinAge / time.Minute)
)

// The container IDs on a smallNode: web has run for an hour at the beginning, the ADD of slow
// takes long, app retries, and host is in the node's network.
var web, slow, app, host = containerID(100), containerID(101), containerID(102), containerID(103)

// A smallNode has a small pool. Its tests run in the fake time of testing/synctest, with the
// real plugin.
type smallNode struct {
	t    *testing.T
	p    *plugintest.Plugin
	slow netip.Addr // that of the ADD in flight

	// The answers of the sources.
	pods      map[string]podsource.Pod // by name
	sandboxes []string                 // whose ADD has ended
	adding    []string                 // whose ADD is in flight
	stale     []string                 // whose entries libcni's cache has from before a reboot
}

// onSmallNode runs a test on a new node in a bubble.
func onSmallNode(t *testing.T, test func(t *testing.T, n *smallNode)) {
	p := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/28"})
	synctest.Test(t, func(t *testing.T) {
		test(t, &smallNode{t: t, p: p, sandboxes: []string{host},
			pods: map[string]podsource.Pod{"agent": {HostNetwork: true}}})
	})
}

// add runs the plugin's ADD, which must give an address, and sets the reservation's time to
// that of the bubble. It returns the pod as its status reports it.
func (n *smallNode) add(id string) podsource.Pod {
	n.t.Helper()
	ips := add(n.t, n.p, id, "eth0")
	age(n.t, n.p, 0, ips...)
	return podsource.Pod{IPs: ips}
}

func (n *smallNode) wantFull(reason string) {
	n.t.Helper()
	_, err := n.p.Add(n.t.Context(), app, "eth0")
	wantError(n.t, err, poolFull, reason)
}

// pass runs a pass. An error fails the test.
func (n *smallNode) pass(r *gc.Reconciler) gc.Report {
	n.t.Helper()
	report, err := r.Reconcile(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return report
}

// releasedBy returns the sorted container IDs of the released reservations.
func releasedBy(report gc.Report) (ids []string) {
	for _, e := range report.Reservations {
		if e.Verdict == gc.Released {
			ids = append(ids, e.ContainerID)
		}
	}
	slices.Sort(ids)
	return ids
}

// sources returns the union of some of the node's sources.
func (n *smallNode) sources(names string) podsource.Source {
	var all []podsource.Source
	for _, name := range strings.Fields(names) {
		all = append(all, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return n.answer(name), nil }))
	}
	return podsource.Union(all...)
}

func (n *smallNode) answer(source string) podsource.Answer {
	every := []string{podsource.EveryNetwork}
	a := podsource.Answer{Source: source, Networks: every}
	byContainerID := func(ids []string) {
		for _, id := range ids {
			a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{id}, HostNetwork: id == host})
		}
	}
	switch source {
	case "kubelet": // pods with their starts and addresses, without containers
		for _, name := range slices.Sorted(maps.Keys(n.pods)) {
			pod := n.pods[name]
			pod.Namespace, pod.Name = "default", name
			a.Pods = append(a.Pods, pod)
		}
	case "cri": // sandboxes, minutes after their ADD
		byContainerID(n.sandboxes)
		a.Names = podsource.SandboxContainers
	case "record": // each container as soon as its ADD has ended
		byContainerID(n.sandboxes)
		a.Names, a.AtOnce = podsource.AnyContainer, true
	case "cache": // the same, from the entries of libcni's cache, some of which are stale
		byContainerID(n.sandboxes)
		a.Names, a.AtOnce, a.Networks, a.Supplementary = podsource.AnyContainer, true, nil, true
		a.Cache = &podsource.Cache{Since: map[string]time.Time{n.p.Network: time.Unix(1, 0)}}
		for _, id := range slices.Concat(n.sandboxes, n.stale) {
			a.Cache.Entries = append(a.Cache.Entries, podsource.Attachment{Network: n.p.Network, ContainerID: id})
		}
	case "netns": // the containers of ADDs in flight, and the addresses of pods
		byContainerID(n.adding)
		a.SeesADDs, a.Networks, a.SeesAddresses, a.Supplementary = every, nil, true, true
		for _, pod := range n.pods {
			if len(pod.IPs) > 0 {
				a.Pods = append(a.Pods, podsource.Pod{IPs: pod.IPs})
			}
		}
	}
	return a
}

// When the leak of a minute is released, if the first pass is in that minute.
var (
	never  = func(first, made int) int { return -1 }
	atOnce = func(first, made int) int { return first }
	// R4 by names: after StartingFor.
	named = func(first, made int) int { return max(made+startingFor, first) }
	// R5: by the first pass, if it is older than MinAge by then.
	aged = func(first, made int) int {
		if made+lag > first {
			return -1
		}
		return first
	}
)

// Each retry of a pod fails after the plugin's ADD, and so does its DEL (containerd#12130),
// until the pool is full. Meanwhile an ADD takes longer than MinAge, and its pod is known, or
// netns sees it.
func TestHazard39PoolFullOfLeaks(t *testing.T) {
	const fullAt = retries + 1 // the minute in which the pool is full
	for _, row := range []struct {
		reason, sources string
		minAge          time.Duration
		first, last     int // the minutes of the first pass and of the last
		released        func(first, made int) int
		adding          gc.Reason
	}{
		{"the runtime names containers, and the agent ran all the time: StartingFor decides",
			"cri kubelet", 0, 0, retries + startingFor, named, gc.PodStarting},
		{"the agent starts some time after the pool is full: its first pass releases the oldest",
			"cri kubelet", 0, fullAt + lag, retries + startingFor, named, gc.PodStarting},
		{"with kubelet or the API server alone a leak looks like an ADD of the starting pod (R4)",
			"kubelet", 0, 0, 120, never, gc.StartingNoEnd},
		{"the record names the containers whose ADD has ended, and netns the one whose ADD is in flight (R4)",
			"netns record kubelet", 0, fullAt + lag, fullAt + lag, aged, gc.ContainerLive},
		{"a minute earlier the last leak is too young, although R4's claim has ended",
			"netns record kubelet", 0, retries + lag - 1, retries + lag - 1, aged, gc.ContainerLive},
		{"a cache that is this node's lets a MinAge of seconds count (R5)",
			"netns cache kubelet", 5 * time.Second, fullAt, fullAt, atOnce, gc.ContainerLive},
		{"without a cache a MinAge of seconds does not count (R5)",
			"netns record kubelet", 5 * time.Second, fullAt, fullAt, aged, gc.ContainerLive},
		{"no source sees ADDs in flight, so a leak may be the starting pod's ADD until StartingFor (R4)",
			"record kubelet", 0, fullAt + lag, fullAt + lag, named, gc.PodStarting},
		{"the runtime lists sandboxes minutes late, so a leak may be that of one until StartingFor (R4)",
			"netns cri kubelet", 0, fullAt + lag, fullAt + lag, named, gc.ContainerLive},
	} {
		t.Run(row.reason, func(t *testing.T) {
			onSmallNode(t, func(t *testing.T, n *smallNode) {
				r := reconcilerOf(t, n.p, n.sources(row.sources), gc.Options{MinAge: row.minAge})
				var report gc.Report
				left := poolSize
				for minute := 0; minute <= row.last; minute++ {
					switch {
					case minute == 0:
						n.pods["web"], n.pods["app"] = n.add(web), podsource.Pod{StartedAt: time.Now()}
						age(t, n.p, time.Hour, n.pods["web"].IPs...)
						n.sandboxes = append(n.sandboxes, web)
					case minute <= retries:
						n.add(containerID(minute))
					case minute == fullAt:
						n.pods["slow"], n.adding = podsource.Pod{StartedAt: time.Now()}, []string{slow}
						n.slow = n.add(slow).IPs[0]
						n.wantFull("one leak a retry")
					}
					time.Sleep(30 * time.Second)
					if minute >= row.first {
						var want []string
						for made := 1; made <= min(minute, retries); made++ {
							if row.released(row.first, made) == minute {
								want = append(want, containerID(made))
							}
						}
						report = n.pass(r)
						wantDiff(t, fmt.Sprintf("released in minute %d", minute), row.reason, want, releasedBy(report))
						left -= len(want)
					}
					time.Sleep(30 * time.Second)
				}
				wantDiff(t, "reservations", row.reason, left, len(reservations(t, n.p)))
				wantDiff(t, "ADD in flight", row.reason, row.adding, reasons(report)[n.slow.String()])
				if left == poolSize {
					n.wantFull("nothing was released")
				} else {
					n.add(app)
				}
			})
		})
	}
}

// The node has booted. All its pods are starting again, the sandboxes and network namespaces
// from before are gone, and the pool is full of their reservations. The hook releases them, or
// the first pass that has seen them for L.
func TestHazard40PoolFullAfterReboot(t *testing.T) {
	const day = 24 * time.Hour
	for _, row := range []struct {
		reason, sources string
		known           bool // the pods' starts, which are from before the reboot
		hook            bool
	}{
		{"a host-network sandbox is listed: with the runtime; known starts", "cri kubelet", true, false},
		{"with the runtime; unknown starts", "cri kubelet", false, false},
		{"with kubelet alone; known starts", "kubelet", true, false},
		{"with kubelet alone; unknown starts", "kubelet", false, false},
		{"stale entries show that the cache is this node's, and no ADD is in flight; known starts", "netns cache kubelet", true, true},
		{"the same; unknown starts", "netns cache kubelet", false, true},
	} {
		t.Run(row.reason, func(t *testing.T) {
			onSmallNode(t, func(t *testing.T, n *smallNode) {
				for i := range poolSize {
					pod, old := podsource.Pod{}, containerID(1+i)
					if row.known {
						pod.StartedAt = time.Now().Add(-3 * day)
					}
					n.pods[fmt.Sprintf("pod-%d", i)] = pod
					age(t, n.p, 2*day, n.add(old).IPs...)
					n.stale = append(n.stale, old)
				}
				n.wantFull("no pod can start")
				r := reconcilerOf(t, n.p, n.sources(row.sources), gc.Options{})
				report, err := r.AtStartup(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for minute := 0; !row.hook && minute < lag; minute++ {
					wantDiff(t, fmt.Sprintf("released by minute %d", minute), "not yet seen for L (R5)", []string(nil), releasedBy(report))
					time.Sleep(time.Minute + time.Second)
					report = n.pass(r)
				}
				wantDiff(t, "released in the end", row.reason, n.stale, releasedBy(report))
				for i := range poolSize {
					n.add(containerID(200 + i))
				}
			})
		})
	}
}
