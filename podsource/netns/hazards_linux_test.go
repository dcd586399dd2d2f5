// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// reserve writes a reservation as host-local does, with this age.
func reserve(t *testing.T, store *hostlocal.Store, ip, owner string, age time.Duration) {
	t.Helper()
	path := filepath.Join(store.DataDir(), "podnet", ip)
	if err := os.WriteFile(path, []byte(owner+"\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if at := time.Now().Add(-age); os.Chtimes(path, at, at) != nil {
		t.Fatal("the time of the reservation can't be set")
	}
}

// newStore makes a store of a node that has been up for a day, with reservations that are
// an hour old.
func newStore(t *testing.T, owners map[string]string) *hostlocal.Store {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	store := hostlocal.New(t.TempDir())
	if err := os.Mkdir(filepath.Join(store.DataDir(), "podnet"), 0o755); err != nil {
		t.Fatal(err)
	}
	for ip, owner := range owners {
		reserve(t, store, ip, owner, time.Hour)
	}
	return store
}

// reasons are those of a pass, by IP address.
type reasons map[string]gc.Reason

// checkPass runs a pass and checks its reasons, and that the directory agrees with its
// verdicts.
func checkPass(t *testing.T, reason string, store *hostlocal.Store, s podsource.Source, minAge time.Duration, want reasons) gc.Report {
	t.Helper()
	reconciler, err := gc.New(store, []string{"podnet"}, s, gc.Options{MinAge: minAge})
	if err != nil {
		t.Fatal(err)
	}
	report, err := reconciler.Reconcile(t.Context())
	if err != nil {
		t.Errorf("%s: the pass: %v", reason, err)
	}
	got := make(reasons)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Reason
		_, err := os.Lstat(filepath.Join(store.DataDir(), "podnet", e.IP.String()))
		if (err == nil) != (e.Verdict != gc.Released) {
			t.Errorf("%s: %s: the verdict is %s, and its file: %v", reason, e.IP, e.Verdict, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: reasons (-want +got):\n%s", reason, diff)
	}
	return report
}

// runtimeSource answers like the cri source. It lists one sandbox, with the pod's name.
var runtimeSource = podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
	return podsource.Answer{
		Source: "cri", Networks: []string{podsource.EveryNetwork}, Names: podsource.SandboxContainers,
		Pods: []podsource.Pod{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "db"}, UID: "db", ContainerIDs: []string{id("1157ed")}}},
	}, nil
})

// id returns a container ID of 64 hexadecimal digits that begins with name.
func id(name string) string { return name + strings.Repeat("0", 64-len(name)) }

// The kernel is asked beside a source that does not list all containers. A namespace without
// an address is not a pod that may own any reservation (R4).
//
// Guard: [Source.Pods] has each configured address, also of a container that no other source
// lists, and the container of each ADD in flight, of any age, and declares that it sees addresses.
func TestHazardsOfUnlistedContainers(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t)
	_, stop := startPod(t, "10.0.0.2", "10.0.0.6") // one address keeps both of a container (R3)
	mountNamespace(t, "/run/netns/named", "10.0.0.5")
	if err := configure([]string{"10.0.0.8"}); err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{
		"10.0.0.2": id("1057"), "fd00::2": id("1057"), "10.0.0.3": id("1157ed"), "10.0.0.4": id("1eaced"), "10.0.0.5": id("5a3ed"),
		"10.0.0.6": "default-" + id("a11fe"), "10.0.0.7": "default-" + id("dead"), "10.0.0.8": id("4ead"), "10.0.0.9": id("add"),
	}
	var endADD func()
	alone := nested(t)
	cri, kubelet := podsource.Union(runtimeSource, alone), podsource.Union(podsource.Static{{UID: "agent", HostNetwork: true}}, alone)
	listed, seen, leak := gc.ContainerLive, gc.AddressClaimed, gc.ReleasedLeak
	for _, row := range []struct {
		reason string
		before func()
		source podsource.Source
		want   reasons // of the owners' reservations that there are
	}{
		{"33 the runtime lost the record of a sandbox", nil, cri,
			reasons{"10.0.0.2": seen, "fd00::2": gc.SiblingInUse, "10.0.0.3": listed, "10.0.0.4": leak, "10.0.0.5": seen}},
		{"35 neither the API server nor kubelet lists a pod", nil, kubelet,
			reasons{"10.0.0.2": seen, "fd00::2": gc.SiblingInUse, "10.0.0.4": leak}},
		{"49 containers of nerdctl, which no runtime lists", nil, cri, reasons{"10.0.0.6": seen, "10.0.0.7": leak}},
		{"87 an address of the node's own namespace", nil, cri, reasons{"10.0.0.4": leak, "10.0.0.8": seen}},
		{"alone, the kernel releases nothing", nil, alone, reasons{"10.0.0.2": seen, "10.0.0.4": gc.NoSourceForNetwork}},
		{"65 an ADD takes longer than the minimum age", func() { _, endADD = startADD(t, "ADD", id("add"), "/run/netns/cni-1") }, cri,
			reasons{"10.0.0.4": leak, "10.0.0.9": listed}},
		{"... and goes on after it has configured the address, which is no conflict", func() { startPod(t, "10.0.0.9") }, cri,
			reasons{"10.0.0.9": listed}},
		{"... and has ended", func() { endADD() }, cri, reasons{"10.0.0.9": seen}},
		{"a process has ended", stop, cri, reasons{"10.0.0.2": leak, "fd00::2": leak, "10.0.0.5": seen}},
		{"... and a mount is gone", func() { unmount(t, "/run/netns/named") }, cri, reasons{"10.0.0.3": listed, "10.0.0.5": leak}},
	} {
		if row.before != nil {
			row.before()
		}
		reserved := maps.Clone(owners)
		maps.DeleteFunc(reserved, func(ip, _ string) bool { return row.want[ip] == 0 })
		report := checkPass(t, row.reason, newStore(t, reserved), row.source, 0, row.want)
		own := func(e gc.Entry) bool {
			return e.Pod != nil && strings.Contains(e.Pod.From(), "the node's own network namespace")
		}
		if _, want := row.want["10.0.0.8"]; slices.ContainsFunc(report.Reservations, own) != want {
			t.Errorf("%s: the report does not say where the address is: %+v", row.reason, report.Reservations)
		}
	}
}

// A container of a nested node has an address of this node's range. The report names
// the namespace and a process, so that a person can find it. Two such namespaces are
// reported as a duplicate (hazard 66). One of them has no process (hazard 102), and is named
// by the path that a person unmounts (ip netns del).
//
// Guard: [scan.note] says where an address was seen, and [scan.all] marks a namespace in which
// no process was found.
func TestHazard79NodeInAPod(t *testing.T) {
	if !onNode(t) {
		return
	}
	pid, _ := startPod(t, "10.0.0.2", "10.0.0.3")
	inode, err := netNSOf(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		t.Fatal(err)
	}
	from := fmt.Sprintf("netns: network namespace %d, of process %d", inode, pid)
	process := func(p *gc.Pod) bool { return p != nil && p.From() == from && !p.NotRunning }
	mounted := func(p *gc.Pod) bool {
		return strings.HasSuffix(p.From(), `, mounted at "/run/netns/second", without a process`) && p.NotRunning
	}
	store := newStore(t, map[string]string{"10.0.0.2": id("1eaced"), "10.0.0.3": id("1157ed")})
	both := podsource.Union(runtimeSource, nested(t))
	want := reasons{"10.0.0.2": gc.AddressClaimed, "10.0.0.3": gc.ContainerLive}
	report := checkPass(t, "one namespace", store, both, 0, want)
	if p := report.Reservations[0].Pod; !process(p) || len(report.Duplicates) > 0 {
		t.Errorf("the report names %+v, want %q, and the duplicates %v", p, from, report.Duplicates)
	}
	mountNamespace(t, "/run/netns/second", "10.0.0.2")
	want["10.0.0.2"] = gc.TwoPods
	report = checkPass(t, "two namespaces with one address", store, both, 0, want)
	if len(report.Duplicates) != 1 || len(report.Duplicates[0].Pods) != 2 {
		t.Fatalf("two namespaces have one address, and the duplicates are %+v", report.Duplicates)
	}
	pods := report.Duplicates[0].Pods
	if !slices.ContainsFunc(pods, process) || !slices.ContainsFunc(pods, mounted) {
		t.Errorf("the report does not tell them apart: %+v, %+v (hazard 102)", pods[0], pods[1])
	}
}

// Passes with the kernel and a cache of CNI results. No container but one shows its address.
//
// Guard: [Source.Living] reports that an entry's namespace exists, and [Source.Pods] has the
// addresses that a cache must know, and declares that it has every ADD in flight.
func TestHazardsOfTheCache(t *testing.T) {
	if !onNode(t) {
		return
	}
	whole, wrong, missing := t.TempDir(), t.TempDir(), t.TempDir()+"/missing"
	cached := func(dir, containerID, netNS string) { // as libcni writes it after an ADD
		text := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"podnet","netns":%q}`, containerID, netNS)
		path, at := filepath.Join(dir, "podnet-"+containerID+"-eth0"), time.Now().Add(-time.Hour)
		if os.WriteFile(path, []byte(text), 0o600) != nil || os.Chtimes(path, at, at) != nil {
			t.Fatal("an entry can't be written")
		}
	}
	mountNamespace(t, "/run/netns/cni-1")
	mountNamespace(t, "/run/netns/cni-2", "10.0.0.6")
	_, stop := startADD(t, "ADD", id("add"), "/run/netns/cni-4")
	cached(whole, id("51039"), "/var/run/netns/cni-1")
	cached(whole, id("5ee9"), "/run/netns/cni-2")
	cached(whole, id("0e3"), "/run/netns/cni-3")
	cached(wrong, id("1eaced"), "/run/netns/cni-3")
	owners := map[string]string{
		"10.0.0.2": id("51039"), "10.0.0.3": id("0e3"), "10.0.0.4": id("add"), "10.0.0.5": id("1eaced"), "10.0.0.6": id("5ee9"),
	}
	const ended = "the namespace is gone, and an ADD has failed"
	live, seen, leak := gc.ContainerLive, gc.AddressClaimed, gc.ReleasedLeak
	for _, row := range []struct {
		reason  string
		cache   string
		runtime bool
		age     time.Duration
		want    reasons // of the owners' reservations that there are
	}{
		{"59 the namespace shows no address, and the runtime lost the record", whole, true, time.Hour,
			reasons{"10.0.0.2": live, "10.0.0.3": leak, "10.0.0.5": leak, "10.0.0.6": live}},
		{"71 seconds after its ADD only the cache names the container", whole, false, 5 * time.Second,
			reasons{"10.0.0.2": live, "10.0.0.4": live, "10.0.0.5": leak, "10.0.0.6": live}},
		{"... a moment after it", whole, false, 0, reasons{"10.0.0.2": live, "10.0.0.5": gc.TooYoung}},
		{"70 a cache without the container whose address is seen: it proves nothing", wrong, false, 5 * time.Second,
			reasons{"10.0.0.2": gc.NoSourceForNetwork, "10.0.0.5": gc.NoSourceForNetwork, "10.0.0.6": seen}},
		{"... beside a runtime, which may list containers later", wrong, true, 5 * time.Second,
			reasons{"10.0.0.2": gc.NotYetListed, "10.0.0.5": gc.NotYetListed, "10.0.0.6": seen}},
		{"70 no cache", missing, false, 5 * time.Second, reasons{"10.0.0.2": gc.NoSourceForNetwork, "10.0.0.6": seen}},
		{ended, whole, false, 5 * time.Second, reasons{"10.0.0.2": leak, "10.0.0.4": leak, "10.0.0.6": live}},
	} {
		if row.reason == ended {
			unmount(t, "/run/netns/cni-1")
			stop()
		}
		store := newStore(t, nil)
		for ip := range row.want {
			reserve(t, store, ip, owners[ip], row.age)
		}
		kernel := nested(t)
		cache, err := cnicache.New(cnicache.Options{Dirs: []string{row.cache}, Living: kernel.Living})
		if err != nil {
			t.Fatal(err)
		}
		sources := []podsource.Source{kernel, cache}
		if row.runtime {
			sources = append(sources, runtimeSource)
		}
		checkPass(t, row.reason, store, podsource.Union(sources...), 2*time.Second, row.want)
	}
}
