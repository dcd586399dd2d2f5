// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The hazards are the ways in which collectors of addresses went wrong, by their numbers in
// testdata/hazards.txt. Each test fails without a guard: the table in internal/mutation says
// which. This file tests those about owners of reservations (R3, R10).

// R10: the owner is not live, and another container has the address.
func TestHazard11AnotherContainerHasTheAddress(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "dead", old)
	n.reserve("fd00::2", "dead", old) // the owner's other address
	n.reserve("10.0.0.3", "leaked", old)
	report := n.pass(podsource.Static{{NamespacedName: named("web"), ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2")}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Conflict, "fd00::2": Conflict, "10.0.0.3": Released})
	if pod := report.Reservations[0].Pod; pod == nil || pod.Name != "web" {
		t.Errorf("the conflict names pod %v, want web", pod)
	}
}

// R3, siblings in another network: every network of the data directory is read, also those
// that the caller does not name.
func TestHazard22SecondNetwork(t *testing.T) {
	for _, c := range []struct {
		reason   string
		networks []string
		want     map[string]Verdict
	}{
		{"a pass over the second network, whose addresses no source reports", []string{"second"}, map[string]Verdict{
			"10.0.0.2": InUse, "10.0.0.3": Leaked, "second/10.9.0.2": InUse, "second/10.9.0.3": Released}},
		{"over both", []string{"second", network1}, map[string]Verdict{
			"10.0.0.2": InUse, "10.0.0.3": Released, "second/10.9.0.2": InUse, "second/10.9.0.3": Released}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.network("second")
			n.reserve("10.0.0.2", "sandbox", old)
			n.reserve("10.0.0.3", "dead", old)
			n.fileIn("second", "10.9.0.2", "sandbox\r\nnet1", old)
			n.fileIn("second", "10.9.0.3", "dead\r\nnet1", old)
			source := podsource.Static{{NamespacedName: named("web"), IPs: ips("10.0.0.2")}}
			n.check(n.reconcile(n.reconcilerOf(c.networks, source, Options{})), c.want)
		})
	}
}

// Two network namespaces have one address: it is reported as a duplicate, in any order, and
// also after two looks.
func TestHazard66TwoNamespacesHaveOneAddress(t *testing.T) {
	one := podsource.Pod{IPs: ips("10.0.0.2", "10.0.0.4"), Origin: "namespace 1, process 100"}
	two := podsource.Pod{IPs: ips("10.0.0.2", "10.0.0.4"), Origin: "namespace 2, process 200"}
	want := []string{"netns: namespace 2, process 200", "netns: namespace 1, process 100"} // the same order each time
	for _, c := range []struct {
		reason string
		source podsource.Source
		looks  int
	}{
		{"in one order", answers(kubeletAnswer(), netnsAnswer(one, two)), 2},
		{"in the other", answers(netnsAnswer(two, one), kubeletAnswer()), 2},
		{"in two answers of one pass", answers(recordAnswer([]string{network1}), netnsAnswer(one, two), kubeletAnswer(starts())), 2},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), old)
			n.reserve("10.0.0.3", hex64("leaked"), old)
			report := n.pass(c.source, Options{})
			n.checkReasons(report, map[string]Reason{"10.0.0.2": TwoPods, "10.0.0.3": ReleasedLeak})
			if report.Looks != c.looks {
				t.Errorf("asked %d times, want %d", report.Looks, c.looks)
			}
			if len(report.Duplicates) != 2 {
				t.Fatalf("got duplicates %v, want two", report.Duplicates)
			}
			for _, d := range report.Duplicates {
				var got []string
				for _, p := range d.Pods {
					got = append(got, p.From)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("duplicates of %v (-want +got):\n%s", d.IP, diff)
				}
			}
		}))
	}
	t.Run("one namespace in two sources is no duplicate", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), old)
		report := n.pass(answers(netnsAnswer(one), criAnswer(sandbox("1", hex64("web"), "10.0.0.2"))), Options{})
		n.check(report, map[string]Verdict{"10.0.0.2": InUse})
		if len(report.Duplicates) != 0 {
			t.Errorf("got duplicates %v, want none", report.Duplicates)
		}
	})
}

// Two networks have the same address. R3's claim by address alone keeps it in both, and the
// report says that the claim may be of the other network.
func TestHazard69OverlappingSubnets(t *testing.T) {
	for _, c := range []struct {
		reason string
		pods   podsource.Static
		want   Reason // of the dead container's, in the second network
	}{
		{"the claim does not name its network", podsource.Static{{ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2")}}, ClaimedInOtherNetwork},
		{"the claim names its network", podsource.Static{{ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2"), Network: network1}}, ReleasedLeak},
		{"one of two claims does not", podsource.Static{
			{ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2"), Network: network1},
			{ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2")},
		}, ClaimedInOtherNetwork},
		{"one of two entries about a container does not", podsource.Static{
			{UID: "1", ContainerIDs: []string{"live"}},
			{UID: "1", ContainerIDs: []string{"third"}, IPs: ips("10.0.0.2"), Network: "second"},
			{UID: "1", ContainerIDs: []string{"third"}, IPs: ips("10.0.0.2")},
		}, ClaimedInOtherNetwork},
		{"the claim without a network is also without a container: a plain conflict", podsource.Static{
			{UID: "1", ContainerIDs: []string{"live"}},
			{UID: "1", ContainerIDs: []string{"third"}, IPs: ips("10.0.0.2"), Network: "second"},
			{UID: "1", IPs: ips("10.0.0.2")},
		}, OtherContainer},
		{"the claimant's container holds neither reservation: a plain conflict", podsource.Static{
			{ContainerIDs: []string{"live"}},
			{ContainerIDs: []string{"third"}, IPs: ips("10.0.0.2"), Network: "second"},
		}, OtherContainer},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.network("second")
			n.reserve("10.0.0.2", "live", old)
			n.reserveIn("second", "10.0.0.2", "dead", old)
			n.reserveIn("second", "10.0.0.3", "leaked", old)
			report := n.reconcile(n.reconcilerOf([]string{network1, "second"}, c.pods, Options{}))
			n.checkReasons(report, map[string]Reason{
				"10.0.0.2": ContainerLive, "second/10.0.0.2": c.want, "second/10.0.0.3": ReleasedLeak})
		})
	}
}

// A conflict about an address names the pod that is not the owner's, in any order, and
// however often the sources list the two.
func TestConflictNamesTheOtherPod(t *testing.T) {
	for _, other := range []string{"a", "z"} {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), old)
		web := podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{hex64("web")}, IPs: ips("10.0.0.2")}
		conflicting := podsource.Pod{NamespacedName: named(other), ContainerIDs: []string{hex64(other)}, IPs: ips("10.0.0.2")}
		report := n.pass(podsource.Static{web, web, conflicting}, Options{})
		n.checkReasons(report, map[string]Reason{"10.0.0.2": TwoPods})
		if got := report.Reservations[0].Pod.Name; got != other {
			t.Errorf("the conflict names %s, want %s", got, other)
		}
	}
}

// Where a container has other addresses than the pod that claims one of them, the report names
// the pod whose container is another one, also for the container's siblings.
func TestConflictNamesThePodWithAnotherContainer(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "dead", old)
	n.reserve("fd00::2", "dead", old)
	source := answers(podsource.Answer{Source: "kubelet", Networks: every, Pods: []podsource.Pod{{NamespacedName: named("web"), IPs: ips("10.0.0.2")}}},
		podsource.Answer{Source: "cri", Networks: every, Pods: []podsource.Pod{{ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2")}}})
	entries := n.pass(source, Options{}).Reservations
	if len(entries) != 2 {
		t.Errorf("%d entries", len(entries))
	}
	for _, e := range entries {
		if e.Pod == nil || e.Pod.From != "cri: container live" {
			t.Errorf("%v %s names %+v", e.IP, e.Reason, e.Pod)
		}
	}
}

// A container has two entries, and one lacks a name. The other one stands for it, in a
// report and in a comparison with a claimant.
func TestOwnerIsTheEntryWithAName(t *testing.T) {
	p, nameless := podsource.Pod{NamespacedName: named("p"), ContainerIDs: []string{"a"}}, podsource.Pod{ContainerIDs: []string{"a"}}
	q := podsource.Pod{NamespacedName: named("q"), IPs: ips("10.0.0.2")}
	for _, pods := range []podsource.Static{{nameless, p, q}, {q, p, nameless}} {
		n := newNode(t)
		n.reserve("10.0.0.2", "a", old)
		n.checkReasons(n.pass(pods, Options{}), map[string]Reason{"10.0.0.2": TwoPods})
	}
	n := newNode(t)
	n.reserve("10.0.0.2", "a", old)
	if got := n.pass(podsource.Static{nameless, p}, Options{}).Reservations[0].Pod.Name; got != "p" {
		t.Errorf("the report names the pod %q, want p", got)
	}
	a, z := startingPod("a", time.Time{}), startingPod("z", time.Time{})
	for _, pods := range []podsource.Static{{a, z}, {z, a}} { // also of two starting pods one stands for both
		if got := n.pass(append(pods, other), Options{}).Reservations[0].Pod; got == nil || got.Name != "z" {
			t.Errorf("the report names the pod %v, want z", got)
		}
	}
}
