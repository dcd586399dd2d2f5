// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package plugintest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A /28 has an address for each of 13 pods.
var smallPool = plugintest.Range{Subnet: "10.1.0.0/28"}

const (
	poolSize = 13
	poolFull = "no IP addresses available in range set"
	retries  = poolSize - 2 // of pod app, each of which leaks; web and slow have the others
)

// The container IDs on a smallNode: web has run for an hour when the node's story
// begins, slow's ADD takes long, and host is in the node's network.
var web, slow, app, host = containerID(100), containerID(101), containerID(102), containerID(103)

// A smallNode has a pool that is soon full. Its story is told in the false time of
// testing/synctest, in which the real plugin runs, too, and by minutes.
type smallNode struct {
	t     *testing.T
	p     *plugintest.Plugin
	begun time.Time

	// What the sources say.
	pods      map[string]podsource.Pod // by name
	sandboxes []string                 // whose ADD has ended
	adding    []string                 // whose ADD is in flight
	stale     []string                 // whose entries libcni's cache has from before a reboot
	looks     int                      // how often plugin processes were looked for
}

// onSmallNode tells a story of one.
func onSmallNode(t *testing.T, tell func(t *testing.T, n *smallNode)) {
	p := plugintest.New(t, "podnet", smallPool)
	synctest.Test(t, func(t *testing.T) {
		tell(t, &smallNode{t: t, p: p, begun: time.Now(), sandboxes: []string{host},
			pods: map[string]podsource.Pod{"agent": {HostNetwork: true}}})
	})
}

// containerID returns one as a runtime makes them.
func containerID(n int) string { return fmt.Sprintf("%064x", n) }

// add runs the plugin's ADD, which must give an address. The reservation bears
// the bubble's time. It returns what a status says of the pod then.
func (n *smallNode) add(id string) podsource.Pod {
	n.t.Helper()
	ips := add(n.t, n.p, id, "eth0")
	age(n.t, n.p, 0, ips...)
	return podsource.Pod{IPs: ips}
}

// until lets time pass until the node is so many minutes and half a minute old.
func (n *smallNode) until(minute int) {
	time.Sleep(time.Until(n.begun.Add(time.Duration(minute)*time.Minute + 30*time.Second)))
}

// fill lets pod app leak an address in each minute from the first on, begins the
// ADD of pod slow in the minute after them, and finds the pool full then. each is
// called half a minute later, in every minute.
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

// wantOwners holds the disk against the containers that are to own all that is
// reserved.
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

// pass makes one, which must not fail, and returns the container IDs of what it
// released, sorted.
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

// kubelet knows pods, their starts and their addresses, and no container.
func (n *smallNode) kubelet(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "kubelet", Forms: []podsource.Form{podsource.Hex64}}
	for _, name := range slices.Sorted(maps.Keys(n.pods)) {
		p := n.pods[name]
		p.Namespace, p.Name = "default", name
		a.Pods = append(a.Pods, p)
	}
	return a, nil
}

// cri lists sandboxes by their container IDs, minutes after their ADD.
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

// cache does so by the entries of libcni's, of which some are of containers that
// are no more.
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

// netns sees the processes of ADDs in flight, and the addresses of pods.
func (n *smallNode) netns(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns", Pods: byContainerID(n.adding), SeesADDs: true, SeesAddresses: true, Supplementary: true}
	for _, p := range n.pods {
		if len(p.IPs) > 0 {
			a.Pods = append(a.Pods, podsource.Pod{IPs: p.IPs})
		}
	}
	return a, nil
}

// netnsBetween is netns of a node on which a chain is just between two of its
// plugins, and so has no process, at each first look or at each second.
func (n *smallNode) netnsBetween(blind int) podsource.AnswerFunc {
	return func(ctx context.Context) (podsource.Answer, error) {
		n.looks++
		adding := n.adding
		if n.looks%2 == blind%2 {
			n.adding = nil
		}
		a, err := n.netns(ctx)
		n.adding = adding
		return a, err
	}
}

// netnsOnce is netns of a node on which only the first look finds processes that
// can be read.
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

// unionOf asks several of a node's sources.
func unionOf(sources ...podsource.AnswerFunc) podsource.Source {
	all := make([]podsource.Source, len(sources))
	for i, s := range sources {
		all[i] = s
	}
	return podsource.Union(all...)
}
