// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Who is who: the cases that the hazards leave out.
func TestHazard11WhoIsWho(t *testing.T) {
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
			reason: "two pods with one address, and a third container holds it, with what else it holds",
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
			reason: "one pod, told twice in part: what can't be told apart is no duplicate",
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
			reason: "an address is the same in its IPv6 clothes, and with a zone",
			rs:     []res{{"10.0.0.2", "a"}, {"fe80::2", "b"}},
			pods:   podsource.Static{{IPs: ips("::ffff:10.0.0.2", "fe80::2%eth0")}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed, "fe80::2": AddressClaimed},
		},
		{
			reason: "an empty file has no owner that could be in conflict with the pod that has its address",
			rs:     []res{{"10.0.0.2", ""}},
			pods:   podsource.Static{{UID: "p", ContainerIDs: []string{"a"}, IPs: ips("10.0.0.2")}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed},
		},
		{
			reason: "one address in use and one in conflict: what else the container holds is in use",
			rs:     []res{{"10.0.0.2", "a"}, {"10.0.0.3", "a"}, {"10.0.0.4", "a"}},
			pods:   podsource.Static{{UID: "p", IPs: ips("10.0.0.2")}, {UID: "q", ContainerIDs: []string{"b"}, IPs: ips("10.0.0.3")}},
			want:   map[string]Reason{"10.0.0.2": AddressClaimed, "10.0.0.3": OtherContainer, "10.0.0.4": SiblingInUse},
		},
		{
			reason: "container IDs match whole",
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
			for _, e := range report.Reservations {
				if want := c.want[e.IP.String()]; e.Reason != want {
					t.Errorf("%s: got %q, want %q", e.IP, e.Reason, want)
				}
			}
			if len(report.Reservations) != len(c.want) || len(report.Duplicates) != c.duplicates {
				t.Errorf("got %d reservations and %d duplicates, want %d and %d",
					len(report.Reservations), len(report.Duplicates), len(c.want), c.duplicates)
			}
			// For good, with only what is needed read. The reason may be another
			// one then, but not what becomes of it.
			report = n.pass(c.pods, Options{})
			for _, e := range report.Reservations {
				if released := e.Verdict == Released; released != (c.want[e.IP.String()] == Unowned) {
					t.Errorf("%s, for good: got %q, want %q", e.IP, e.Reason, c.want[e.IP.String()])
				}
			}
		})
	}
}

// R3: what could not be read may be a sibling.
func TestHazard30SiblingCanNotBeRead(t *testing.T) {
	for _, c := range []struct {
		reason string
		state  hostlocal.OwnerState
		pod    podsource.Pod // that claims the address
		want   Reason
	}{
		{"an error, and the pod is known by its address alone", hostlocal.Unreadable, podsource.Pod{IPs: ips("10.0.0.2")}, SiblingUnreadable},
		{"an error, and the pod's container is known: there may be a conflict", hostlocal.Unreadable,
			podsource.Pod{IPs: ips("10.0.0.2"), ContainerIDs: []string{"a"}}, SiblingUnreadable},
		{"replaced, and the pod is known by its address alone", hostlocal.Replaced, podsource.Pod{IPs: ips("10.0.0.2")}, SiblingChanged},
		{"gone, and the pod's container is known: its others match by themselves", hostlocal.Vanished,
			podsource.Pod{IPs: ips("10.0.0.2"), ContainerIDs: []string{"a"}}, Unowned},
	} {
		t.Run(c.reason, func(t *testing.T) {
			at := moment{wall: time.Now()}
			w := world{clock: &clock{}, at: at, here: network{rs: []hostlocal.Reservation{
				{IP: ips("10.0.0.2")[0], Owner: c.state},
				{IP: ips("10.0.0.3")[0], Owner: hostlocal.Owned, ContainerID: "suspect", ReservedAt: at.wall.Add(-old)},
				{IP: ips("10.0.0.4")[0], Owner: hostlocal.Empty, ReservedAt: at.wall.Add(-old)},
			}}}
			w.view = newView([]podsource.Pod{c.pod}, w.clock, at, at, DefaultMinAge)
			w.here.claims = w.view.claimsOn(w.here.rs)
			judged := slices.Repeat([]judgement{{ReleasedLeak, 7}}, len(w.here.rs)) // what stood there before counts for nothing
			decide(w, judged)
			if slices.Contains(judged, judgement{ReleasedLeak, 7}) {
				t.Errorf("not all was judged: %v", judged)
			}
			if got := judged[1].reason; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := judged[2].reason; got != EmptyOwner {
				t.Errorf("an empty owner has no siblings: got %q", got)
			}
		})
	}
}

// Every reason has its verdict, its rule and its text.
func TestReasons(t *testing.T) {
	used := make(map[Verdict]bool)
	for i := range reasons {
		r := Reason(i)
		if r.String() == "" || r.Rule() == "" {
			t.Errorf("reason %d has no text or no rule", i)
		}
		used[r.Verdict()] = true
	}
	for _, v := range Verdicts() {
		if !used[v] {
			t.Errorf("no reason leads to %s", v)
		}
	}
	if got := Reason(200); got.Verdict() != Failed || got.String() != "reason 200" || got.Rule() != "" {
		t.Errorf("an unknown reason is %s, %q", got.Verdict(), got)
	}
}
