// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R3 and R10: one address and several pods.
func TestHazard11OneAddressSeveralPods(t *testing.T) {
	type res struct{ ip, owner string }
	for _, c := range []struct {
		reason     string
		rs         []res
		pods       podsource.Static
		want       map[string]Reason
		duplicates int
	}{
		{
			reason: "two pods with one address, one of them its owner",
			rs:     []res{{"10.0.0.2", "a"}, {"fd00::2", "a"}},
			pods: podsource.Static{
				{NamespacedName: named("p"), UID: "p", ContainerIDs: []string{"a"}, IPs: ips("10.0.0.2")},
				{NamespacedName: named("q"), UID: "q", ContainerIDs: []string{"b"}, IPs: ips("10.0.0.2")},
			},
			want:       map[string]Reason{"10.0.0.2": TwoPods, "fd00::2": ContainerLive},
			duplicates: 1,
		},
		{
			reason: "two pods, one of which has the address and the other one is its owner",
			rs:     []res{{"10.0.0.2", "a"}},
			pods: podsource.Static{
				{NamespacedName: named("p"), UID: "p", ContainerIDs: []string{"a"}},
				{NamespacedName: named("q"), UID: "q", ContainerIDs: []string{"b"}, IPs: ips("10.0.0.2")},
			},
			want: map[string]Reason{"10.0.0.2": TwoPods},
		},
		{
			reason: "two pods with one address, and a third container holds it and another one",
			rs:     []res{{"10.0.0.2", "dead"}, {"fd00::2", "dead"}},
			pods: podsource.Static{
				{NamespacedName: named("p"), UID: "p", IPs: ips("10.0.0.2")},
				{NamespacedName: named("q"), UID: "q", IPs: ips("10.0.0.2")},
			},
			want:       map[string]Reason{"10.0.0.2": TwoPods, "fd00::2": OwnerInConflict},
			duplicates: 1,
		},
		{
			reason:     "two pods with one address that is not reserved",
			pods:       podsource.Static{{UID: "p", IPs: ips("10.0.0.2")}, {UID: "q", IPs: ips("10.0.0.2")}},
			want:       map[string]Reason{},
			duplicates: 1,
		},
		{
			reason: "parts of one pod in three entries: entries with nothing in common are no duplicate",
			rs:     []res{{"10.0.0.2", "a"}},
			pods:   podsource.Static{{ContainerIDs: []string{"a"}}, {NamespacedName: named("p"), UID: "p", IPs: ips("10.0.0.2")}, {IPs: ips("10.0.0.2")}},
			want:   map[string]Reason{"10.0.0.2": ContainerLive},
		},
		{
			reason: "a static pod has one UID at kubelet and another at the API server",
			rs:     []res{{"10.0.0.2", "a"}},
			pods: podsource.Static{
				{NamespacedName: named("static"), UID: "hash", ContainerIDs: []string{"a"}},
				{NamespacedName: named("static"), UID: "mirror", IPs: ips("10.0.0.2")},
			},
			want: map[string]Reason{"10.0.0.2": ContainerLive},
		},
		{
			reason: "IPv4-mapped, and with a zone",
			rs:     []res{{"10.0.0.2", "a"}, {"fe80::2", "b"}},
			pods:   podsource.Static{{IPs: ips("::ffff:10.0.0.2", "fe80::2%eth0")}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed, "fe80::2": AddressClaimed},
		},
		{
			reason: "an empty file has no owner, so it is in no conflict with the pod that has its address",
			rs:     []res{{"10.0.0.2", ""}},
			pods:   podsource.Static{{UID: "p", ContainerIDs: []string{"a"}, IPs: ips("10.0.0.2")}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed},
		},
		{
			reason: "one address in use and one in conflict: the container's third address is in use",
			rs:     []res{{"10.0.0.2", "a"}, {"10.0.0.3", "a"}, {"10.0.0.4", "a"}},
			pods:   podsource.Static{{UID: "p", IPs: ips("10.0.0.2")}, {UID: "q", ContainerIDs: []string{"b"}, IPs: ips("10.0.0.3")}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed, "10.0.0.3": OtherContainer, "10.0.0.4": SiblingInUse},
		},
		{
			reason: "... in any order",
			rs:     []res{{"10.0.0.2", "a"}, {"10.0.0.3", "a"}, {"10.0.0.4", "a"}},
			pods:   podsource.Static{{UID: "p", IPs: ips("10.0.0.3")}, {UID: "q", ContainerIDs: []string{"b"}, IPs: ips("10.0.0.2")}},
			want:   map[string]Reason{"10.0.0.2": OtherContainer, "10.0.0.3": AddressClaimed, "10.0.0.4": SiblingInUse},
		},
		{
			reason: "the container of a claimant is in another entry about its pod",
			rs:     []res{{"10.0.0.2", "dead"}},
			pods:   podsource.Static{{NamespacedName: named("p"), UID: "p", IPs: ips("10.0.0.2")}, {UID: "p", ContainerIDs: []string{"b"}, IPs: ips("10.0.0.2")}},
			want:   map[string]Reason{"10.0.0.2": OtherContainer},
		},
		{
			reason: "a claimant that is listed by its address alone may be the owner's pod",
			rs:     []res{{"10.0.0.2", "a"}},
			pods:   podsource.Static{{NamespacedName: named("p"), UID: "p", IPs: ips("10.0.0.2")}, {ContainerIDs: []string{"b"}}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed},
		},
		{
			reason: "many entries about one pod are no conflict",
			rs:     []res{{"10.0.0.2", "a"}},
			pods: podsource.Static{
				{UID: "p", IPs: ips("10.0.0.2")}, {UID: "p", IPs: ips("10.0.0.2"), Origin: "x"}, {UID: "p", ContainerIDs: []string{"a", "b"}, IPs: ips("10.0.0.2")},
				{ContainerIDs: []string{"b"}, IPs: ips("10.0.0.2")}, {ContainerIDs: []string{"b", "c"}, IPs: ips("10.0.0.2")},
			},
			want: map[string]Reason{"10.0.0.2": ContainerLive},
		},
		{
			reason:     "two containers without pods",
			rs:         []res{{"10.0.0.2", "a"}},
			pods:       podsource.Static{{ContainerIDs: []string{"a"}, IPs: ips("10.0.0.2")}, {ContainerIDs: []string{"b"}, IPs: ips("10.0.0.2")}},
			want:       map[string]Reason{"10.0.0.2": TwoPods},
			duplicates: 1,
		},
		{
			reason: "two pods of one name in two namespaces",
			rs:     []res{{"10.0.0.2", "a"}},
			pods: podsource.Static{
				{NamespacedName: types.NamespacedName{Namespace: "x", Name: "p"}, IPs: ips("10.0.0.2")},
				{NamespacedName: types.NamespacedName{Namespace: "y", Name: "p"}, IPs: ips("10.0.0.2")},
			},
			want:       map[string]Reason{"10.0.0.2": TwoPods},
			duplicates: 1,
		},
		{
			reason: "a pod has two containers, as after a restart of its sandbox",
			rs:     []res{{"10.0.0.2", "b"}},
			pods:   podsource.Static{{ContainerIDs: []string{"a", "b"}}},
			want:   map[string]Reason{"10.0.0.2": ContainerLive},
		},
		{
			reason: "a container ID matches only as a whole",
			rs:     []res{{"10.0.0.2", "abc"}},
			pods:   podsource.Static{{ContainerIDs: []string{"abcd", "ab"}}},
			want:   map[string]Reason{"10.0.0.2": Unowned},
		},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			for _, r := range c.rs {
				content := r.owner
				if content != "" {
					content += "\r\neth0"
				}
				n.file(r.ip, content, old)
			}
			report := n.pass(c.pods, Options{DryRun: true})
			n.checkReasons(report, c.want)
			if len(report.Duplicates) != c.duplicates {
				t.Errorf("got %d duplicates, want %d", len(report.Duplicates), c.duplicates)
			}
		})
	}
}

// The cost of an address that very many pods claim is limited.
func TestConflictingPodsAreLimited(t *testing.T) {
	var pods []*livePod
	for i := range 1000 {
		pods = append(pods, &livePod{Pod: &podsource.Pod{ContainerIDs: []string{strconv.Itoa(i)}}})
	}
	if got := len(conflicting(pods)); got != 32 {
		t.Errorf("%d of 1000 pods are compared with each other, want 32", got)
	}
}
