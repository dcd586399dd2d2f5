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
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// reserve writes reservations that are an hour old, as host-local does.
func reserve(t *testing.T, owners map[string]string) *hostlocal.Store {
	t.Helper()
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

// pass fails unless a pass gives these verdicts, and the directory is as they say.
func pass(t *testing.T, store *hostlocal.Store, s podsource.Source, want map[string]gc.Verdict) gc.Report {
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
			t.Errorf("%s was judged %s, and its file: %v", e.IP, e.Verdict, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	return report
}

// The runtime lists one sandbox, with its name, as the cri source gives it.
var runtimeLists = podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
	return podsource.Answer{
		Source: "cri", Names: []podsource.Names{{Form: podsource.Hex64, Lag: podsource.RuntimeLag}},
		Pods: []podsource.Pod{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "db"}, UID: "db", ContainerIDs: []string{id("1157ed")}}},
	}, nil
})

// id returns a container ID as runtimes make them, which begins with a name of
// hexadecimal digits.
func id(name string) string { return name + strings.Repeat("0", 64-len(name)) }

// The runtime lost a sandbox's record, and the sandbox lives on. The kernel's
// answer keeps all that it holds, and is no conflict with what the runtime says of
// the sandboxes that it lists.
//
// Guard: [Source.Pods] has each address that is configured, whoever knows the
// container.
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
	both := podsource.Union(runtimeLists, nested(t))
	pass(t, store, both, map[string]gc.Verdict{
		"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.3": gc.InUse, "10.0.0.4": gc.Released, "10.0.0.5": gc.InUse,
	})
	stop()
	pass(t, store, both, map[string]gc.Verdict{
		"10.0.0.2": gc.Released, "fd00::2": gc.Released, "10.0.0.3": gc.InUse, "10.0.0.5": gc.InUse,
	})
	unmount(t, "/run/netns/named")
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.3": gc.InUse, "10.0.0.5": gc.Released})
}

// Neither the API nor kubelet knows the pod any more, and its address is up.
//
// Guard: [Source.Pods] has each address that is configured, whoever knows the
// pod.
func TestHazard35DeletedByForce(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": "forced", "fd00::2": "forced", "10.0.0.4": "leaked"})
	_, stop := startPod(t, "10.0.0.2") // one address is enough: R3, the sibling
	kubelet := podsource.Static{{UID: "agent", HostNetwork: true}}
	both := podsource.Union(kubelet, nested(t))
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.4": gc.Released})
	stop()
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.Released, "fd00::2": gc.Released})
}

// Containers that no CRI lists hold addresses. Their IDs tell that the runtime
// could not know them (R14), and the kernel tells which of them live.
//
// Guard: [Source.Pods] declares that it sees addresses.
func TestHazard49ContainersOfNerdctl(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": "default-" + id("a11fe"), "10.0.0.3": "default-" + id("dead"), "10.0.0.4": id("1157ed")})
	startPod(t, "10.0.0.2")
	kept := map[string]gc.Verdict{"10.0.0.2": gc.Foreign, "10.0.0.3": gc.Foreign, "10.0.0.4": gc.InUse}
	pass(t, store, runtimeLists, kept)

	unstable := nested(t) // a namespace comes with each look, so it can't have seen all
	n := 0
	unstable.setns = func(fd, kind int) error {
		if n++; n%2 == 1 { // not on the way back
			startPod(t, "10.0.9.9")
		}
		return unix.Setns(fd, kind)
	}
	kept["10.0.0.2"] = gc.InUse
	pass(t, store, podsource.Union(runtimeLists, unstable), kept)

	pass(t, store, podsource.Union(runtimeLists, nested(t)),
		map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released, "10.0.0.4": gc.InUse})
}

// A container of a node within this one has an address of our range. The report
// says in which namespace and process it is, for who has to find it. Two such
// namespaces are told as a duplicate (hazard 66).
//
// Guard: [scan.note] says where an address was seen.
func TestHazard79NodeInAPod(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": id("1eaced"), "10.0.0.3": id("1157ed")})
	pid, _ := startPod(t, "10.0.0.2", "10.0.0.3")
	both := podsource.Union(runtimeLists, nested(t))
	want := map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.InUse}
	report := pass(t, store, both, want)
	inode, err := nsInode(fmt.Sprintf("/proc/%d/ns/net", pid))
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
	report = pass(t, store, both, want)
	if len(report.Duplicates) != 1 || len(report.Duplicates[0].Pods) != 2 {
		t.Fatalf("two namespaces have one address, and the report says %+v", report.Duplicates)
	}
	mounted := func(p *gc.Pod) bool { return strings.HasSuffix(p.From, ", mounted at /run/netns/second") }
	process := func(p *gc.Pod) bool { return p.From == from }
	if both := report.Duplicates[0].Pods; !slices.ContainsFunc(both, mounted) || !slices.ContainsFunc(both, process) {
		t.Errorf("the report does not say where to look: %+v, %+v", both[0], both[1])
	}
}

// A node without pods is an answer here, and alone it lets nothing go. R4: a
// namespace without an address does not stand for a pod that may hold anything.
func TestIdleNode(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": "leaked"})
	startPod(t)
	pass(t, store, nested(t), map[string]gc.Verdict{"10.0.0.2": gc.Foreign})
	agent := podsource.Static{{UID: "agent", HostNetwork: true}}
	pass(t, store, podsource.Union(agent, nested(t)), map[string]gc.Verdict{"10.0.0.2": gc.Released})
}
