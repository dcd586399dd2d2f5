// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// reserve writes reservations as host-local does. They are an hour old, and the node has been
// up for a day.
func reserve(t *testing.T, owners map[string]string) *hostlocal.Store {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "podnet"), 0o755); err != nil {
		t.Fatal(err)
	}
	for ip, owner := range owners {
		path := filepath.Join(data, "podnet", ip)
		if err := os.WriteFile(path, []byte(owner+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return hostlocal.New(data)
}

// checkPass runs a pass and checks its verdicts, and that the directory agrees with
// them.
func checkPass(t *testing.T, store *hostlocal.Store, s podsource.Source, want map[string]gc.Verdict) gc.Report {
	t.Helper()
	reconciler, err := gc.New(store, []string{"podnet"}, s, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := reconciler.Reconcile(t.Context())
	if err != nil {
		t.Errorf("the pass: %v", err)
	}
	got := make(map[string]gc.Verdict)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Verdict
		_, err := os.Lstat(filepath.Join(store.DataDir(), "podnet", e.IP.String()))
		if (err == nil) != (e.Verdict != gc.Released) {
			t.Errorf("%s: the verdict is %s, and its file: %v", e.IP, e.Verdict, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	return report
}

// A reserved address is configured in the node's own namespace.
func TestHazard87NodesOwnAddress(t *testing.T) {
	if !onNode(t) {
		return
	}
	if err := configure([]string{"10.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	store := reserve(t, map[string]string{"10.0.0.2": id("4ead"), "10.0.0.3": id("1ea4ed")})
	report := checkPass(t, store, podsource.Union(runtimeSource, nested(t)), map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released})
	if got := report.Reservations[0].Pod.From; !strings.Contains(got, "the node's own network namespace") {
		t.Errorf("got %q, want it to say where the address is", got)
	}
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

// The runtime lost the record of a running sandbox. The kernel's answer keeps its
// addresses, and does not conflict with the sandboxes that the runtime lists.
//
// Guard: [Source.Pods] has each configured address, also of a container that no other
// source lists.
func TestHazard33RecordLost(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{
		"10.0.0.2": id("1057"), "fd00::2": id("1057"), "10.0.0.3": id("1157ed"), "10.0.0.4": id("1eaced"), "10.0.0.5": id("5a3ed"),
	})
	_, stop := startPod(t, "10.0.0.2", "fd00::2")
	startPod(t, "10.0.0.3")
	mountNamespace(t, "/run/netns/named", "10.0.0.5")
	both := podsource.Union(runtimeSource, nested(t))
	checkPass(t, store, both, map[string]gc.Verdict{
		"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.3": gc.InUse, "10.0.0.4": gc.Released, "10.0.0.5": gc.InUse,
	})
	stop()
	checkPass(t, store, both, map[string]gc.Verdict{
		"10.0.0.2": gc.Released, "fd00::2": gc.Released, "10.0.0.3": gc.InUse, "10.0.0.5": gc.InUse,
	})
	unmount(t, "/run/netns/named")
	checkPass(t, store, both, map[string]gc.Verdict{"10.0.0.3": gc.InUse, "10.0.0.5": gc.Released})
}

// Neither the API server nor kubelet lists the pod any more, and its address is still
// configured.
//
// Guard: [Source.Pods] has each configured address, also of a pod that no other source
// lists.
func TestHazard35DeletedByForce(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": id("f0ced"), "fd00::2": id("f0ced"), "10.0.0.4": id("1eaced")})
	_, stop := startPod(t, "10.0.0.2") // one address keeps both (R3)
	kubelet := podsource.Static{{UID: "agent", HostNetwork: true}}
	both := podsource.Union(kubelet, nested(t))
	checkPass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.4": gc.Released})
	stop()
	checkPass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.Released, "fd00::2": gc.Released})
}

// Containers of nerdctl have addresses, and no CRI lists them. By their IDs the runtime
// can't know them (R14). The kernel knows which of them are live.
//
// Guard: [Source.Pods] declares that it sees addresses.
func TestHazard49ContainersOfNerdctl(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": "default-" + id("a11fe"), "10.0.0.3": "default-" + id("dead"), "10.0.0.4": id("1157ed")})
	startPod(t, "10.0.0.2")
	kept := map[string]gc.Verdict{"10.0.0.2": gc.Foreign, "10.0.0.3": gc.Foreign, "10.0.0.4": gc.InUse}
	checkPass(t, store, runtimeSource, kept)

	unstable := nested(t) // a new namespace appears in each scan, so not all are seen
	n := 0
	unstable.setns = func(fd, kind int) error {
		if n++; n%2 == 1 { // not on the way back
			startPod(t, "10.0.9.9")
		}
		return unix.Setns(fd, kind)
	}
	kept["10.0.0.2"] = gc.InUse
	checkPass(t, store, podsource.Union(runtimeSource, unstable), kept)

	checkPass(t, store, podsource.Union(runtimeSource, nested(t)),
		map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released, "10.0.0.4": gc.InUse})
}

// A container of a nested node has an address of this node's range. The report names
// the namespace and a process, so that a person can find it. Two such namespaces are
// reported as a duplicate (hazard 66). One of them has no process (hazard 102).
//
// Guard: [scan.note] says where an address was seen.
func TestHazard79NodeInAPod(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": id("1eaced"), "10.0.0.3": id("1157ed")})
	pid, _ := startPod(t, "10.0.0.2", "10.0.0.3")
	both := podsource.Union(runtimeSource, nested(t))
	want := map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.InUse}
	report := checkPass(t, store, both, want)
	inode, err := netNSOf(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		t.Fatal(err)
	}
	from := fmt.Sprintf("netns: network namespace %d, of process %d", inode, pid)
	if p := report.Reservations[0].Pod; p == nil || p.From != from {
		t.Errorf("the report names %+v, want %q", p, from)
	}
	if len(report.Duplicates) > 0 {
		t.Errorf("one namespace is a duplicate of itself: %v", report.Duplicates)
	}

	mountNamespace(t, "/run/netns/second", "10.0.0.2")
	want["10.0.0.2"] = gc.Conflict
	report = checkPass(t, store, both, want)
	if len(report.Duplicates) != 1 || len(report.Duplicates[0].Pods) != 2 {
		t.Fatalf("two namespaces have one address, and the duplicates are %+v", report.Duplicates)
	}
	mounted := func(p *gc.Pod) bool {
		return strings.HasSuffix(p.From, ", mounted at /run/netns/second, without a process") && p.NotRunning
	}
	process := func(p *gc.Pod) bool { return p.From == from && !p.NotRunning }
	if both := report.Duplicates[0].Pods; !slices.ContainsFunc(both, mounted) || !slices.ContainsFunc(both, process) {
		t.Errorf("the report does not say where the address is: %+v, %+v", both[0], both[1])
	}
}

// An empty answer is no error, and alone it releases nothing. A namespace without an
// address is not a pod that may own any reservation (R4).
func TestIdleNode(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": id("1eaced")})
	startPod(t)
	checkPass(t, store, nested(t), map[string]gc.Verdict{"10.0.0.2": gc.Foreign})
	agent := podsource.Static{{UID: "agent", HostNetwork: true}}
	checkPass(t, store, podsource.Union(agent, nested(t)), map[string]gc.Verdict{"10.0.0.2": gc.Released})
}

// A namespace that only a mount keeps is told apart from one with a process, with the path that
// a person unmounts (ip netns del).
//
// Guard: [scan.all] marks a namespace in which no process was found.
func TestHazard102NamespaceWithoutAProcess(t *testing.T) {
	if !onNode(t) {
		return
	}
	pid, stop := startPod(t, "10.0.0.2")
	bindNamespace(t, pid, "/run/netns/web")
	for _, row := range []struct {
		ended bool
		want  string
	}{{false, ", mounted at /run/netns/web"}, {true, ", mounted at /run/netns/web, without a process"}} {
		all, err := nested(t).Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, seen := parts(t, all); len(seen.Pods) != 1 || seen.Pods[0].NotRunning != row.ended || !strings.HasSuffix(seen.Pods[0].Origin, row.want) {
			t.Errorf("got %+v, want %q", seen.Pods, row.want)
		}
		stop()
	}
}
