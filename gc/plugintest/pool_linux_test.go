// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package plugintest_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// smallPool has 13 addresses.
var smallPool = plugintest.Range{Subnet: "10.1.0.0/28"}

const (
	poolSize = 13
	retries  = poolSize - 2 // of pod app, each of which leaks an address; web and slow have the others
)

// The container IDs on a smallNode: web has run for an hour at the beginning, the ADD of slow
// takes long, app retries, and host is in the node's network.
var web, slow, app, host = containerID(100), containerID(101), containerID(102), containerID(103)

// A smallNode has a small pool. Its tests run minute by minute in the fake time of
// testing/synctest, with the real plugin.
type smallNode struct {
	t     *testing.T
	p     *plugintest.Plugin
	begun time.Time

	// The answers of the sources.
	pods      map[string]podsource.Pod // by name
	sandboxes []string                 // whose ADD has ended
	adding    []string                 // whose ADD is in flight
	stale     []string                 // whose entries libcni's cache has from before a reboot
	looks     int                      // how often netns was asked
}

// onSmallNode runs a test on a new node in a bubble.
func onSmallNode(t *testing.T, test func(t *testing.T, n *smallNode)) {
	p := plugintest.New(t, "podnet", smallPool)
	synctest.Test(t, func(t *testing.T) {
		test(t, &smallNode{t: t, p: p, begun: time.Now(), sandboxes: []string{host},
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

// until sleeps until half a minute after that minute of the node.
func (n *smallNode) until(minute int) {
	time.Sleep(time.Until(n.begun.Add(time.Duration(minute)*time.Minute + 30*time.Second)))
}

// fill leaks an address of pod app in each minute from the first on, begins the ADD of pod
// slow in the minute after them, and checks that the pool is full. It calls each in the
// middle of every minute.
func (n *smallNode) fill(each func(minute int)) {
	n.t.Helper()
	n.pods["web"] = n.add(web)
	age(n.t, n.p, time.Hour, n.pods["web"].IPs...)
	n.sandboxes = append(n.sandboxes, web)
	n.pods["app"] = podsource.Pod{StartedAt: time.Now()}
	for minute := range retries + 2 {
		if minute > 0 {
			time.Sleep(30 * time.Second)
		}
		switch {
		case minute > retries:
			n.pods["slow"] = podsource.Pod{StartedAt: time.Now()}
			n.add(slow)
			n.adding = []string{slow}
			n.wantFull("one leak a retry")
		case minute > 0:
			n.add(containerID(minute))
		}
		n.until(minute)
		each(minute)
	}
}

// leaked returns the container IDs of the retries, sorted.
func leaked() (ids []string) {
	for minute := 1; minute <= retries; minute++ {
		ids = append(ids, containerID(minute))
	}
	return ids
}

func (n *smallNode) wantFull(reason string) {
	n.t.Helper()
	_, err := n.p.Add(n.t.Context(), app, "eth0")
	wantError(n.t, err, poolFull, reason)
}

// wantOwners fails unless these containers, and no others, own reservations on the disk.
func (n *smallNode) wantOwners(reason string, ids ...string) {
	n.t.Helper()
	want := make(map[string]bool)
	for _, id := range ids {
		want[id+"\r\neth0"] = true
	}
	got := make(map[string]bool)
	for _, owner := range reservations(n.t, n.p) {
		got[owner] = true
	}
	wantDiff(n.t, "owners on disk", reason, want, got)
}

// pass runs a pass, and returns the sorted container IDs of the released reservations. An
// error fails the test.
func (n *smallNode) pass(r *gc.Reconciler) (report gc.Report, released []string) {
	n.t.Helper()
	report, err := r.Reconcile(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return report, releasedBy(report)
}

func releasedBy(report gc.Report) (ids []string) {
	for _, e := range report.Reservations {
		if e.Verdict == gc.Released {
			ids = append(ids, e.ContainerID)
		}
	}
	slices.Sort(ids)
	return ids
}

// of returns the entry of a container's only reservation.
func of(t *testing.T, report gc.Report, id string) gc.Entry {
	t.Helper()
	for _, e := range report.Reservations {
		if e.ContainerID == id {
			return e
		}
	}
	t.Fatalf("the report has no entry of container %s", id)
	return gc.Entry{}
}

// kubelet names pods with their starts and addresses, without containers.
func (n *smallNode) kubelet(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "kubelet", Forms: []podsource.Form{podsource.Hex64}}
	for _, name := range slices.Sorted(maps.Keys(n.pods)) {
		p := n.pods[name]
		p.Namespace, p.Name = "default", name
		a.Pods = append(a.Pods, p)
	}
	return a, nil
}

// cri names sandboxes by their container IDs, minutes after their ADD.
func (n *smallNode) cri(context.Context) (podsource.Answer, error) {
	return podsource.Answer{
		Source: "cri", Pods: byContainerID(n.sandboxes),
		Names: []podsource.Names{{Form: podsource.Hex64, Lag: podsource.RuntimeLag}},
	}, nil
}

// record names each container as soon as its ADD has ended.
func (n *smallNode) record(context.Context) (podsource.Answer, error) {
	return podsource.Answer{
		Source: "record", Pods: byContainerID(n.sandboxes), Names: []podsource.Names{{Form: podsource.AnyForm}},
	}, nil
}

// cache names them from the entries of libcni's cache, which also has entries of containers
// that no longer exist.
func (n *smallNode) cache(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{
		Source: "cnicache", Pods: byContainerID(n.sandboxes), Names: []podsource.Names{{Form: podsource.AnyForm}},
		Supplementary: true, Recorded: []podsource.Attachment{}, RecordedSince: time.Unix(1, 0),
	}
	for _, id := range slices.Concat(n.sandboxes, n.stale) {
		a.Recorded = append(a.Recorded, podsource.Attachment{Network: n.p.Network, ContainerID: id})
	}
	return a, nil
}

// netns names the containers of ADDs in flight, and the addresses of pods.
func (n *smallNode) netns(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns", Pods: byContainerID(n.adding), SeesADDs: true, SeesAddresses: true, Supplementary: true}
	for _, p := range n.pods {
		if len(p.IPs) > 0 {
			a.Pods = append(a.Pods, podsource.Pod{IPs: p.IPs})
		}
	}
	return a, nil
}

// netnsBetween is netns of a node where an ADD is between two plugins of its chain, and so
// has no process, in the first look of each pass (1) or in the second (2).
func (n *smallNode) netnsBetween(look int) podsource.AnswerFunc {
	return func(ctx context.Context) (podsource.Answer, error) {
		n.looks++
		adding := n.adding
		if n.looks%2 == look%2 {
			n.adding = nil
		}
		a, err := n.netns(ctx)
		n.adding = adding
		return a, err
	}
}

// netnsOnce is netns of a node where only the first look can read processes.
func (n *smallNode) netnsOnce(ctx context.Context) (podsource.Answer, error) {
	n.looks++
	if n.looks > 1 {
		return podsource.Answer{Source: "netns", Supplementary: true}, nil
	}
	return n.netns(ctx)
}

func byContainerID(ids []string) (pods []podsource.Pod) {
	for _, id := range ids {
		pods = append(pods, podsource.Pod{ContainerIDs: []string{id}, HostNetwork: id == host})
	}
	return pods
}

// unionOf returns the union of several of a node's sources.
func unionOf(sources ...podsource.AnswerFunc) podsource.Source {
	all := make([]podsource.Source, len(sources))
	for i, s := range sources {
		all[i] = s
	}
	return podsource.Union(all...)
}
