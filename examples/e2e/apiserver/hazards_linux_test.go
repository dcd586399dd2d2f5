// SPDX-License-Identifier: Apache-2.0

package apiserver

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

// The hazards of gc/testdata/hazards.txt that involve an API server. The real plugin makes
// the reservations, and a real server stores and lists the pods.

// only returns the first address as text: the only one of a single-stack network.
func only(ips []netip.Addr) string { return ips[0].String() }

// The API server gets the address long after the end of the ADD (R4).
//
// Guard: [kubepod.Convert] sets the start of the pod.
func TestHazard01RunningWithoutPodIPs(t *testing.T) {
	n := newNode(t)
	leaked, held := n.reserve("leaked", 3*old), n.reserve("held", time.Hour)
	n.pod("web", started(2*time.Hour))
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.Starting})
}

// A list that is empty, or lacks the agent's own pod, is an error (R9).
//
// Guard: [gc.ErrNoPods] and [podsource.Require]: the source never sets Authoritative.
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

// The status has the IPv4 address, but not yet the IPv6 address (R3, sibling).
//
// Guard: [gc.InUse] through the other address of the container.
func TestHazard08DualStackHalfReported(t *testing.T) {
	n := newNode(t, pool4, pool6)
	web, leaked := n.reserve("web", old), n.reserve("leaked", old)
	n.pod("web", with(web[0]))
	n.collect(map[string]gc.Verdict{
		web[0].String(): gc.InUse, web[1].String(): gc.InUse,
		leaked[0].String(): gc.Released, leaked[1].String(): gc.Released,
	})
}

// A pod is created again under its name, and the reservation of the old one leaked.
//
// Guard: [kubepod.Convert] claims no address by the name of a pod.
func TestHazard10RecreatedUnderItsName(t *testing.T) {
	n := newNode(t)
	before := n.reserve("before", old)
	first := n.pod("web-0", with(before...))
	n.collect(map[string]gc.Verdict{only(before): gc.InUse})
	n.remove("web-0", 30)
	n.collect(map[string]gc.Verdict{only(before): gc.InUse}) // it is being deleted, and still in the list
	n.remove("web-0", 0)
	after := n.reserve("after", old)
	if second := n.pod("web-0", with(after...)); second.UID == first.UID {
		t.Fatal("it is the same pod")
	}
	n.collect(map[string]gc.Verdict{only(before): gc.Released, only(after): gc.InUse})
}

// The status of a pod that finished long ago still has its address.
//
// Guard: [kubepod.Convert] sets the end of a pod.
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
				t.Errorf("the finished pod claims its old address: %v", report.Duplicates)
			}
		})
	}
}

// A pod has just finished, and its sandbox is still up.
//
// Guard: [kubepod.Convert] sets no end that is too early.
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
	t.Run("no container has a time, but the managed fields have", func(t *testing.T) {
		n := newNode(t)
		held := n.reserve("held", old)
		pod := n.pod("done", phase(corev1.PodFailed), with(held...))
		n.collect(map[string]gc.Verdict{only(held): gc.InUse})
		n.pod("other", onHostNetwork)
		n.backdate(pod, time.Hour)
		n.collect(map[string]gc.Verdict{only(held): gc.Released})
	})
}

// The address in a second network is not in podIPs, but in the annotation of Multus (R3), or
// its container also holds one in the first network.
//
// Guard: [kubepod.Convert] reads the annotation.
func TestHazard22SecondNetwork(t *testing.T) {
	for _, row := range []struct {
		reason    string
		annotated bool
	}{
		{"in the annotation; the first network does not use host-local", true},
		{"through the first network, in the same data directory", false},
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

// The list is that of another or an older node with the same name (R9). Without the check each
// of these passes would release the address of a live pod.
//
// Guard: [Source.sameNode] compares the boot ID and the UID.
func TestHazard23OtherNodeOfTheName(t *testing.T) {
	n := newNode(t)
	n.reserve("live", old)
	// The machine was replaced, or booted again, and the API server has the pods of before.
	n.pod("of-before", with(netip.MustParseAddr("10.1.0.77")))
	report, err := n.pass(newSource(n.client.CoreV1(), n.name, kube.Options{SkipNodeCheck: true}), gc.Options{DryRun: true})
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

	// The Node is deleted and created again by this machine's kubelet: only the UID differs.
	n.must(n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	says(n.source(), "there is no such Node", n.name)
	now := n.register(bootID(t))
	says(newSource(n.client.CoreV1(), n.name, kube.Options{NodeUID: then.UID}), string(then.UID), string(now.UID))
}

// Pods in the node's network have its address, and claim nothing (R3, R9).
//
// Guard: [kubepod.Convert] leaves out the addresses of a pod in the node's network.
func TestHazard28HostNetwork(t *testing.T) {
	n := newNode(t)
	leaked := n.reserve("leaked", old)
	n.pod("proxy", onHostNetwork, with(leaked...)) // the only pod of the list, which is not empty
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released})
}

// Failed pods that never had an address stay in the API for days.
//
// Guard: [kubepod.Convert] sets Finished without a known end.
func TestHazard31Evicted(t *testing.T) {
	n := newNode(t)
	leaked, held := n.reserve("leaked", time.Hour), n.reserve("held", old)
	for i := range 3 {
		n.backdate(n.pod(fmt.Sprintf("evicted-%d", i), evicted(2*old)), 2*old)
	}
	n.pod("web", with(held...))
	n.collect(map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.InUse})
}

// A pod has been in ContainerCreating for days.
//
// Guard: [kubepod.Convert] sets the start of the pod.
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

// The start of a pod is in the future, or not reported yet (R4).
//
// Guard: [kubepod.Convert] uses no other time as the start.
func TestHazard36StartUnknown(t *testing.T) {
	for reason, since := range map[string]time.Duration{"kubelet has not reported a start": 0, "the start is in the future": -time.Hour} {
		t.Run(reason, func(t *testing.T) {
			n := newNode(t)
			unmatched, held := n.reserve("unmatched", 3*old), n.reserve("held", old)
			n.pod("new", phase(corev1.PodPending), started(since))
			n.pod("web", with(held...))
			n.collect(map[string]gc.Verdict{only(unmatched): gc.Starting, only(held): gc.InUse})
		})
	}
}

// A container of nerdctl, which no API server knows (R14).
//
// Guard: [Source.Pods] declares the form of its container IDs.
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
