// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// A cachedNode is a node with a cache of CNI results and reservations.
type cachedNode struct {
	t     *testing.T
	store *hostlocal.Store
	cache string
}

func newCachedNode(t *testing.T) *cachedNode {
	t.Helper()
	return &cachedNode{t, reserve(t, nil), t.TempDir()}
}

// reserved writes a reservation with this age.
func (n *cachedNode) reserved(ip, containerID string, age time.Duration) {
	n.t.Helper()
	path := filepath.Join(n.store.DataDir(), "podnet", ip)
	at := time.Now().Add(-age)
	if err := os.WriteFile(path, []byte(containerID+"\r\neth0"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		n.t.Fatal(err)
	}
}

// cached writes an entry of the cache as libcni does after an ADD. It is an hour old.
func (n *cachedNode) cached(containerID, netNS string) {
	n.t.Helper()
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(n.cachedNow(containerID, netNS), at, at); err != nil {
		n.t.Fatal(err)
	}
}

func (n *cachedNode) cachedNow(containerID, netNS string) (path string) {
	n.t.Helper()
	return n.entry(containerID, fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"podnet","netns":%q}`, containerID, netNS))
}

func (n *cachedNode) entry(containerID, text string) (path string) {
	n.t.Helper()
	path = filepath.Join(n.cache, "podnet-"+containerID+"-eth0")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// pass runs a pass with a minimum age of two seconds, with these sources beside the
// kernel and the cache, and checks its reasons.
func (n *cachedNode) pass(reason string, want map[string]gc.Reason, more ...podsource.Source) {
	n.t.Helper()
	kernel := nested(n.t)
	cache, err := cnicache.New(cnicache.Options{Dirs: []string{n.cache}, Living: kernel.Living})
	if err != nil {
		n.t.Fatal(err)
	}
	r, err := gc.New(n.store, []string{"podnet"}, podsource.Union(append(more, cache, kernel)...), gc.Options{MinAge: 2 * time.Second})
	if err != nil {
		n.t.Fatal(err)
	}
	report, err := r.Reconcile(n.t.Context())
	if err != nil {
		n.t.Errorf("%s: %v", reason, err)
	}
	got := make(map[string]gc.Reason)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Reason
	}
	for ip, why := range want {
		if got[ip] != why {
			n.t.Errorf("%s: %s is %v, want %v", reason, ip, got[ip], why)
		}
	}
	if len(got) != len(want) {
		n.t.Errorf("%s: got %v, want %v", reason, got, want)
	}
}

// mountEmpty mounts a network namespace without addresses.
func mountEmpty(t *testing.T, name string) (path string) {
	t.Helper()
	path = "/run/netns/" + name
	mountNamespace(t, path)
	return path
}

// The namespace has no address, the runtime lost the record of the container, and the
// cache names it.
//
// Guard: [Source.Living] reports that the entry's namespace exists.
func TestHazard59NamespaceShowsNoAddress(t *testing.T) {
	if !onNode(t) {
		return
	}
	n := newCachedNode(t)
	n.reserved("10.0.0.2", id("51039"), time.Hour)
	n.reserved("10.0.0.3", id("1eaced"), time.Hour)
	n.cached(id("51039"), "/var"+mountEmpty(t, "cni-1"))
	n.cached(id("1eaced"), "/run/netns/cni-2")
	n.pass("its namespace exists", map[string]gc.Reason{"10.0.0.2": gc.ContainerLive, "10.0.0.3": gc.ReleasedLeak}, runtimeSource)
	unmount(t, "/run/netns/cni-1")
	n.pass("its namespace is gone", map[string]gc.Reason{"10.0.0.2": gc.ReleasedLeak}, runtimeSource)
}

// Seconds after an ADD only the cache names the container: the runtime lists it
// minutes later. A leak of the same age is released at once, without a runtime.
//
// Guard: [Source.Living] reports that the entry's namespace exists, and [Source.Pods]
// declares that it has every ADD in flight.
func TestHazard71SecondsAfterTheADD(t *testing.T) {
	if !onNode(t) {
		return
	}
	n := newCachedNode(t)
	const seconds = 5 * time.Second
	n.reserved("10.0.0.2", id("51039"), seconds)
	n.reserved("10.0.0.3", id("1eaced"), seconds)
	n.reserved("10.0.0.4", id("add"), seconds)
	n.reserved("10.0.0.5", id("0e3"), 0)
	n.cached(id("51039"), mountEmpty(t, "cni-1"))
	_, stop := startADD(t, "ADD", id("add"), "/run/netns/cni-4")
	want := map[string]gc.Reason{"10.0.0.2": gc.ContainerLive, "10.0.0.3": gc.ReleasedLeak, "10.0.0.4": gc.ContainerLive, "10.0.0.5": gc.TooYoung}
	n.pass("a leak beside them", want)
	stop()
	delete(want, "10.0.0.3")
	want["10.0.0.4"] = gc.ReleasedLeak
	n.reserved("10.0.0.5", id("0e3"), 0)
	n.pass("an ADD failed and left its reservation", want)
}

// A cache that is empty or not the node's releases nothing: reservations younger than
// the default minimum age wait for that age, and configured addresses are kept in any
// case.
//
// Guard: [Source.Pods] has the addresses that a cache must know. Without such a cache
// a [gc.Options.MinAge] below L does not count.
func TestHazard70CacheThatProvesNothing(t *testing.T) {
	if !onNode(t) {
		return
	}
	n := newCachedNode(t)
	const seconds = 5 * time.Second
	n.reserved("10.0.0.2", id("51039"), seconds)
	n.reserved("10.0.0.3", id("1eaced"), seconds)
	n.reserved("10.0.0.4", id("f1f0"), seconds)
	mountNamespace(t, "/run/netns/cni-1", "10.0.0.2")
	right := n.cache
	n.cached(id("51039"), "/run/netns/cni-1")
	n.cached(id("f1f0"), mountEmpty(t, "cni-2"))
	young := map[string]gc.Reason{"10.0.0.2": gc.AddressClaimed, "10.0.0.3": gc.NoSourceForNetwork, "10.0.0.4": gc.NoSourceForNetwork}
	withRuntime := map[string]gc.Reason{"10.0.0.2": gc.AddressClaimed, "10.0.0.3": gc.NotYetListed, "10.0.0.4": gc.NotYetListed}

	n.cache = filepath.Join(t.TempDir(), "missing")
	n.pass("a missing directory", young)
	n.pass("... beside a runtime", withRuntime, runtimeSource)
	n.cache = t.TempDir()
	n.pass("a wiped one", young)
	n.cached(id("07e4"), "/run/netns/cni-1")
	n.pass("one that names no container of this node", young)
	n.pass("... beside a runtime", withRuntime, runtimeSource)
	n.cached(id("1eaced"), "/run/netns/cni-9")
	n.pass("one without the container whose address is seen", young)

	n.cache = right
	n.entry(id("f1f0"), `{"kind":"cniC`)
	n.pass("a torn entry: the cache does not speak of the container in its file name, and the rest is proven",
		map[string]gc.Reason{"10.0.0.2": gc.ContainerLive, "10.0.0.3": gc.ReleasedLeak, "10.0.0.4": gc.NotRecorded})
	n.cached(id("f1f0"), "/run/netns/cni-2")
	n.pass("whole", map[string]gc.Reason{"10.0.0.2": gc.ContainerLive, "10.0.0.4": gc.ContainerLive})
}

// A cache was wiped while containers without addresses in their namespaces run, and
// has a new entry. It does not speak of older reservations.
//
// Guard: [podsource.Cache.Since] is a time since which the cache was not
// wiped.
func TestHazard70WipedCacheOfContainersWithoutAddress(t *testing.T) {
	if !onNode(t) {
		return
	}
	n := newCachedNode(t)
	n.reserved("10.0.0.2", id("51039"), 5*time.Second)
	n.cached(id("51039"), mountEmpty(t, "cni-1"))
	n.reserved("10.0.0.3", id("f1f0"), 0)
	path := mountEmpty(t, "cni-2")
	n.cachedNow(id("f1f0"), path)
	n.pass("whole", map[string]gc.Reason{"10.0.0.2": gc.ContainerLive, "10.0.0.3": gc.ContainerLive})
	n.cache = t.TempDir()
	n.cachedNow(id("f1f0"), path)
	n.pass("wiped", map[string]gc.Reason{"10.0.0.2": gc.NotRecorded, "10.0.0.3": gc.ContainerLive})
	n.pass("... beside a runtime", map[string]gc.Reason{"10.0.0.2": gc.NotYetListed, "10.0.0.3": gc.ContainerLive}, runtimeSource)
}

// After a power loss only the cache and the reservations are left. The first pass
// releases all addresses of the earlier boot, without a runtime, and keeps that of a
// container that was started again.
func TestPowerLoss(t *testing.T) {
	if !onNode(t) {
		return
	}
	n := newCachedNode(t)
	want := make(map[string]gc.Reason)
	for i := range 200 {
		ip, containerID := fmt.Sprintf("10.0.1.%d", i), id(fmt.Sprintf("dead%d", i))
		n.reserved(ip, containerID, time.Hour)
		n.cached(containerID, fmt.Sprintf("/run/netns/cni-%d", i))
		want[ip] = gc.ReleasedLeak
	}
	n.reserved("10.0.2.1", "web", 5*time.Second)
	mountNamespace(t, "/run/netns/web", "10.0.2.1")
	n.cached("web", "/run/netns/web")
	want["10.0.2.1"] = gc.ContainerLive
	n.pass("reservations of the earlier boot", want)
}
