// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// The hazards of gc/testdata/hazards.txt that an API server has a part in, each
// with one: the reservations are the real plugin's, the pods are stored and
// listed by the real server.

// only returns the one address of single stack, as text.
func only(ips []netip.Addr) string { return ips[0].String() }

// The address reaches the API long after the ADD returned (R4).
//
// Guard: [kubepod.Convert] says when the pod was started.
func TestHazard01RunningWithoutPodIPs(t *testing.T) {
	n := newNode(t)
	leaked, held := n.reserve("leaked", 3*old), n.reserve("held", time.Hour)
	n.pod("web", started(2*time.Hour))
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.Starting})
}

// No pods, or not the one that surely runs here, is no answer (R9).
//
// Guard: [gc.ErrNoPods] and [podsource.Require]: the source never says that empty is an answer.
func TestHazard06EmptyOrWithoutTheAgent(t *testing.T) {
	n := newNode(t)
	n.reserve("held", old)
	if err := n.refused(n.source()); !errors.Is(err, gc.ErrNoPods) {
		t.Errorf("got error %v, want %v", err, gc.ErrNoPods)
	}
	n.pod("other", onHostNetwork)
	agent := types.NamespacedName{Namespace: n.namespace, Name: "agent"}
	if err := n.refused(podsource.Require(n.source(), agent)); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("got error %v, want %v", err, podsource.ErrIncomplete)
	}
}

// The status has only the IPv4 address of two (R3, sibling).
//
// Guard: [gc.InUse] by the other address of the container.
func TestHazard08DualStackHalfReported(t *testing.T) {
	n := newNode(t, pool4, pool6)
	web, leaked := n.reserve("web", old), n.reserve("leaked", old)
	n.pod("web", with(web[0]))
	n.collect(map[string]gc.Verdict{
		web[0].String(): gc.InUse, web[1].String(): gc.InUse,
		leaked[0].String(): gc.Released, leaked[1].String(): gc.Released,
	})
}

// A pod of the same name is made anew, and the old one's reservation leaked.
//
// Guard: [kubepod.Convert] takes no name for an address.
func TestHazard10RecreatedUnderItsName(t *testing.T) {
	n := newNode(t)
	before := n.reserve("before", old)
	first := n.pod("web-0", with(before...))
	n.collect(map[string]gc.Verdict{only(before): gc.InUse})
	n.remove("web-0", 30)
	n.collect(map[string]gc.Verdict{only(before): gc.InUse}) // it is going, and still here
	n.remove("web-0", 0)
	after := n.reserve("after", old)
	if second := n.pod("web-0", with(after...)); second.UID == first.UID {
		t.Fatal("it is the same pod")
	}
	n.collect(map[string]gc.Verdict{only(before): gc.Released, only(after): gc.InUse})
}

// A pod that finished long ago still lists its address.
//
// Guard: [kubepod.Convert] tells when a pod ended.
func TestHazard12FinishedLongAgo(t *testing.T) {
	for _, p := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		t.Run(string(p), func(t *testing.T) {
			n := newNode(t)
			leaked, used := n.reserve("leaked", old), n.reserve("live", old)
			n.pod("done", finished(p, old), with(leaked...))
			n.pod("done-before", finished(p, old), with(used...))
			n.pod("live", with(used...))
			report := n.collect(map[string]gc.Verdict{only(leaked): gc.Released, only(used): gc.InUse})
			if len(report.Duplicates) > 0 {
				t.Errorf("the finished pod claims what it had: %v", report.Duplicates)
			}
		})
	}
}

// A pod that has just finished, its sandbox still up.
//
// Guard: [kubepod.Convert] takes no time that is too early.
func TestHazard13JustFinished(t *testing.T) {
	for _, p := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		t.Run(string(p)+" with addresses", func(t *testing.T) {
			n := newNode(t)
			held, leaked := n.reserve("held", old), n.reserve("leaked", old)
			n.pod("done", finished(p, recent), with(held...))
			n.collect(map[string]gc.Verdict{only(held): gc.InUse, only(leaked): gc.Released})
		})
		t.Run(string(p)+" without addresses", func(t *testing.T) {
			n := newNode(t)
			held, leaked := n.reserve("held", old), n.reserve("leaked", 3*old)
			n.pod("done", finished(p, recent))
			n.collect(map[string]gc.Verdict{only(held): gc.Starting, only(leaked): gc.Released})
		})
	}
	t.Run("no container has a time, the server's note of the status has", func(t *testing.T) {
		n := newNode(t)
		held := n.reserve("held", old)
		pod := n.pod("done", phase(corev1.PodFailed), with(held...))
		n.collect(map[string]gc.Verdict{only(held): gc.InUse})
		n.pod("other", onHostNetwork)
		n.backdate(pod, time.Hour)
		n.collect(map[string]gc.Verdict{only(held): gc.Released})
	})
}

// The second network's addresses are in no podIPs, but in Multus' annotation
// (R3), or belong to the container that holds the first.
//
// Guard: [kubepod.Convert] reads the annotation.
func TestHazard22SecondNetwork(t *testing.T) {
	for _, row := range []struct {
		reason    string
		annotated bool
	}{
		{"the annotation tells, and the first network is not host-local's", true},
		{"the first network tells, in the same data directory", false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			storage := &plugintest.Plugin{Binary: n.plugin.Binary, DataDir: n.plugin.DataDir, Network: "storage", Ranges: []plugintest.Range{{Subnet: "10.9.0.0/24"}}}
			second, leaked := reserveIn(t, storage, "web", old), reserveIn(t, storage, "leaked", old)
			if row.annotated {
				n.pod("web", with(netip.MustParseAddr("192.0.2.7")), annotated("k8s.v1.cni.cncf.io/network-status", fmt.Sprintf(
					`[{"name":"other","interface":"eth0","ips":["192.0.2.7"],"default":true},{"name":"ns/storage","interface":"net1","ips":["%s"]}]`, second[0])))
			} else {
				n.pod("web", with(n.reserve("web", old)...))
			}
			n.plugin = storage
			n.collect(map[string]gc.Verdict{only(second): gc.InUse, only(leaked): gc.Released})
		})
	}
}

// The list is an older incarnation's of a node with the same name (R9). Without
// the check each of these passes would release the address of a live pod.
//
// Guard: [Source.sameNode] compares the boot ID and the UID.
func TestHazard23OtherNodeOfTheName(t *testing.T) {
	n := newNode(t)
	n.reserve("live", old)
	// The machine was replaced, or booted anew, and the API has yesterday's pods.
	n.pod("of-before", with(netip.MustParseAddr("10.1.0.77")))
	report, err := n.pass(made(kube.New(n.client.CoreV1(), n.name, kube.Options{SkipNodeCheck: true})), gc.Options{DryRun: true})
	n.must(err)
	if report.Counts()[gc.Leaked] != 1 {
		t.Fatalf("there is nothing to lose here: %v", report.Counts())
	}

	then, err := n.client.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
	n.must(err)
	setBoot := func(id string) {
		t.Helper()
		n.setStatus(func(s *corev1.NodeStatus) { s.NodeInfo.BootID = id })
	}
	says := func(source podsource.Source, parts ...string) {
		t.Helper()
		err := n.refused(source)
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not say %q: %v", part, err)
			}
		}
	}
	setBoot("11111111-2222-3333-4444-555555555555")
	says(n.source(), n.name, "boot ID 11111111-2222-3333-4444-555555555555", "this kernel's is "+bootID(t))
	setBoot("")
	says(n.source(), n.name, "has no boot ID")

	// The Node is deleted and made anew, and this machine's kubelet reports: its
	// UID tells.
	n.must(n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	says(n.source(), "there is no such Node", n.name)
	now := n.register(bootID(t))
	says(made(kube.New(n.client.CoreV1(), n.name, kube.Options{NodeUID: then.UID})), string(then.UID), string(now.UID))
}

// Pods in the node's network have its address, and claim nothing (R3, R9).
//
// Guard: [kubepod.Convert] leaves out the addresses of a pod in the node's network.
func TestHazard28HostNetwork(t *testing.T) {
	n := newNode(t)
	leaked := n.reserve("leaked", old)
	n.pod("proxy", onHostNetwork, with(leaked...)) // it alone is listed, which is not an empty list
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released})
}

// Failed pods that never had an address stay in the API for days.
//
// Guard: [kubepod.Convert] marks a pod without an end as finished.
func TestHazard31Evicted(t *testing.T) {
	n := newNode(t)
	leaked, held := n.reserve("leaked", time.Hour), n.reserve("held", old)
	for i := range 3 {
		n.backdate(n.pod(fmt.Sprintf("evicted-%d", i), evicted(2*old)), 2*old)
	}
	n.pod("web", with(held...))
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.InUse})
}

// A pod in ContainerCreating for days.
//
// Guard: [kubepod.Convert] says when the pod was started.
func TestHazard32Stuck(t *testing.T) {
	n := newNode(t)
	older, younger := n.reserve("older", 3*old), n.reserve("younger", old)
	stuck := n.pod("stuck", phase(corev1.PodPending), started(2*old), func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", Image: "registry.example/main:1",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		}}
	})
	report := n.collect(map[string]gc.Verdict{only(older): gc.Released, only(younger): gc.Starting})
	for i := range report.Reservations {
		if e := &report.Reservations[i]; e.Verdict == gc.Starting && (e.Pod == nil || e.Pod.Name != stuck.Name) {
			t.Errorf("the report does not name the pod: %v", e.Pod)
		}
	}
}

// A pod's start lies in the future, or is not reported yet (R4).
//
// Guard: [kubepod.Convert] takes no other time for the start.
func TestHazard36StartUnknown(t *testing.T) {
	for reason, since := range map[string]time.Duration{"kubelet has not reported a start": 0, "the start lies in the future": -time.Hour} {
		t.Run(reason, func(t *testing.T) {
			n := newNode(t)
			unmatched, held := n.reserve("unmatched", 3*old), n.reserve("held", old)
			n.pod("new", phase(corev1.PodPending), started(since))
			n.pod("web", with(held...))
			n.collect(map[string]gc.Verdict{only(unmatched): gc.Starting, only(held): gc.InUse})
		})
	}
}

// A container of nerdctl, of which no API server knows anything (R14).
//
// Guard: [Source.Pods] says which form the IDs of its containers have.
func TestHazard49ContainersOfNerdctl(t *testing.T) {
	n := newNode(t)
	leaked, held := n.reserve("leaked", old), n.reserve("held", old)
	n.pod("web", with(held...))
	foreign, err := n.plugin.Add(t.Context(), "default-"+strings.Repeat("5c7b9a1e", 8), "eth0")
	n.must(err)
	then := time.Now().Add(-old)
	n.must(os.Chtimes(n.plugin.File(foreign[0]), then, then))
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.InUse, only(foreign): gc.Foreign})
}
