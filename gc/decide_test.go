// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R3 and R10: one address and several pods.
func TestHazard11OneAddressSeveralPods(t *testing.T) {
	type owners = map[string]string // of reservations
	type want = map[string]Reason
	// entry returns what a source may know of a pod: its UID, containers and addresses.
	entry := func(uid types.UID, containers, addresses string) podsource.Pod {
		return podsource.Pod{UID: uid, ContainerIDs: strings.Fields(containers), IPs: ips(strings.Fields(addresses)...)}
	}
	in := func(namespace, name string, p podsource.Pod) podsource.Pod {
		p.NamespacedName = types.NamespacedName{Namespace: namespace, Name: name}
		return p
	}
	for _, c := range []struct {
		reason     string
		owners     owners
		pods       podsource.Static
		want       want
		duplicates int
	}{
		{"two pods with one address, one of them its owner", owners{"10.0.0.2": "a", "fd00::2": "a"},
			podsource.Static{entry("p", "a", "10.0.0.2"), entry("q", "b", "10.0.0.2")},
			want{"10.0.0.2": TwoPods, "fd00::2": ContainerLive}, 1},
		{"two pods, one of which has the address and the other one is its owner", owners{"10.0.0.2": "a"},
			podsource.Static{entry("p", "a", ""), entry("q", "b", "10.0.0.2")}, want{"10.0.0.2": TwoPods}, 0},
		{"two pods with one address, and a third container holds it and another one", owners{"10.0.0.2": "dead", "fd00::2": "dead"},
			podsource.Static{entry("p", "", "10.0.0.2"), entry("q", "", "10.0.0.2")},
			want{"10.0.0.2": TwoPods, "fd00::2": OwnerInConflict}, 1},
		{"two pods with one address that is not reserved", nil,
			podsource.Static{entry("p", "", "10.0.0.2"), entry("q", "", "10.0.0.2")}, want{}, 1},
		{"parts of one pod in three entries: entries with nothing in common are no duplicate", owners{"10.0.0.2": "a"},
			podsource.Static{entry("", "a", ""), in("x", "web", entry("p", "", "10.0.0.2")), entry("", "", "10.0.0.2")},
			want{"10.0.0.2": ContainerLive}, 0},
		{"a static pod has one UID at kubelet and another at the API server", owners{"10.0.0.2": "a"},
			podsource.Static{in("x", "static", entry("hash", "a", "")), in("x", "static", entry("mirror", "", "10.0.0.2"))},
			want{"10.0.0.2": ContainerLive}, 0},
		{"IPv4-mapped, and with a zone", owners{"10.0.0.2": "a", "fe80::2": "b"},
			podsource.Static{entry("", "", "::ffff:10.0.0.2 fe80::2%eth0")}, want{"10.0.0.2": AddressClaimed, "fe80::2": AddressClaimed}, 0},
		{"an empty file has no owner, so it is in no conflict with the pod that has its address", owners{"10.0.0.2": ""},
			podsource.Static{entry("p", "a", "10.0.0.2")}, want{"10.0.0.2": AddressClaimed}, 0},
		{"one address in use and one in conflict: the third is in use", owners{"10.0.0.2": "a", "10.0.0.3": "a", "10.0.0.4": "a"},
			podsource.Static{entry("p", "", "10.0.0.2"), entry("q", "b", "10.0.0.3")},
			want{"10.0.0.2": AddressClaimed, "10.0.0.3": OtherContainer, "10.0.0.4": SiblingInUse}, 0},
		{"... in any order", owners{"10.0.0.2": "a", "10.0.0.3": "a", "10.0.0.4": "a"},
			podsource.Static{entry("p", "", "10.0.0.3"), entry("q", "b", "10.0.0.2")},
			want{"10.0.0.2": OtherContainer, "10.0.0.3": AddressClaimed, "10.0.0.4": SiblingInUse}, 0},
		{"the container of a claimant is in another entry about its pod", owners{"10.0.0.2": "dead"},
			podsource.Static{in("x", "p", entry("p", "", "10.0.0.2")), entry("p", "b", "10.0.0.2")}, want{"10.0.0.2": OtherContainer}, 0},
		{"a claimant that is listed by its address alone may be the owner's pod", owners{"10.0.0.2": "a"},
			podsource.Static{entry("p", "", "10.0.0.2"), entry("", "b", "")}, want{"10.0.0.2": AddressClaimed}, 0},
		{"many entries about one pod are no conflict", owners{"10.0.0.2": "a"}, podsource.Static{
			entry("p", "", "10.0.0.2"), {UID: "p", IPs: ips("10.0.0.2"), Origin: "x"}, entry("p", "a b", "10.0.0.2"),
			entry("", "b", "10.0.0.2"), entry("", "b c", "10.0.0.2"),
		}, want{"10.0.0.2": ContainerLive}, 0},
		{"two containers without pods", owners{"10.0.0.2": "a"},
			podsource.Static{entry("", "a", "10.0.0.2"), entry("", "b", "10.0.0.2")}, want{"10.0.0.2": TwoPods}, 1},
		{"two pods of one name in two namespaces", owners{"10.0.0.2": "a"},
			podsource.Static{in("x", "p", entry("", "", "10.0.0.2")), in("y", "p", entry("", "", "10.0.0.2"))}, want{"10.0.0.2": TwoPods}, 1},
		{"a pod has two containers, as after a restart of its sandbox", owners{"10.0.0.2": "b"},
			podsource.Static{entry("", "a b", "")}, want{"10.0.0.2": ContainerLive}, 0},
		{"a container ID matches only as a whole", owners{"10.0.0.2": "abc"},
			podsource.Static{entry("", "abcd ab", "")}, want{"10.0.0.2": Unowned}, 0},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			for ip, owner := range c.owners {
				if n.reserve(ip, owner, old); owner == "" {
					n.file(ip, "", old)
				}
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
