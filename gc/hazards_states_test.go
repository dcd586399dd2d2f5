// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards that are one state of a node, what its sources answer, and one pass.
func TestHazardStates(t *testing.T) {
	const second, uptime, up = "second", 30 * 24 * time.Hour, 3 * time.Minute // up since a moment ago
	web, leaked := hex64("web"), hex64("leaked")
	stuck := func(age time.Duration) podsource.Pod { return startingPod("stuck", time.Now().Add(-age)) }
	nodesOwn := podsource.Pod{IPs: ips("10.0.0.2", "192.168.0.1", "fd00::1"), HostNetwork: true, Origin: "the node's own network namespace"}
	type owners = map[string]string
	made := func(all owners) func(*node) {
		return func(n *node) {
			for ip, id := range all {
				n.reserve(ip, id, old)
			}
		}
	}
	kubelet := func(pods ...podsource.Pod) func() []podsource.Answer {
		return func() []podsource.Answer { return []podsource.Answer{kubeletAnswer(pods...)} }
	}
	for _, c := range []struct {
		reason  string
		uptime  time.Duration
		make    func(n *node)
		members func() []podsource.Answer
		want    map[string]Reason
	}{
		{"01 it runs, and has no address in its status yet", uptime, func(n *node) {
			n.reserve("10.0.0.2", web, 30*time.Minute)
			n.reserve("10.0.0.3", leaked, 2*time.Hour)
		}, func() []podsource.Answer { return []podsource.Answer{kubeletAnswer(stuck(31 * time.Minute))} },
			map[string]Reason{"10.0.0.2": StartingNoEnd, "10.0.0.3": ReleasedLeak}},
		{"02 its sandbox is known, and its address is not", uptime, made(owners{"10.0.0.2": web, "10.0.0.3": leaked}), func() []podsource.Answer {
			return []podsource.Answer{kubeletAnswer(podsource.Pod{UID: "1", IPs: ips("10.0.0.9")}), criAnswer(sandbox("1", web))}
		}, map[string]Reason{"10.0.0.2": ContainerLive, "10.0.0.3": ReleasedLeak}},
		{"05 a sandbox is live in any state, also without an address", uptime, made(owners{"10.0.0.2": web, "10.0.0.3": leaked}),
			kubelet(sandbox("1", web)), map[string]Reason{"10.0.0.2": ContainerLive, "10.0.0.3": ReleasedLeak}},
		{"08 dual stack, half of it in the status", uptime,
			made(owners{"10.0.0.2": web, "fd00::2": web, "10.0.0.3": leaked, "fd00::3": leaked}), kubelet(podsource.Pod{IPs: ips("10.0.0.2")}),
			map[string]Reason{"10.0.0.2": AddressClaimed, "fd00::2": SiblingInUse, "10.0.0.3": ReleasedLeak, "fd00::3": ReleasedLeak}},
		{"10 recreated under its name, which is no identity", uptime, made(owners{"10.0.0.2": leaked, "10.0.0.3": web}),
			kubelet(podsource.Pod{NamespacedName: named("web-0"), UID: "new", ContainerIDs: []string{web}, IPs: ips("10.0.0.3")}),
			map[string]Reason{"10.0.0.2": ReleasedLeak, "10.0.0.3": ContainerLive}},
		{"14 an empty file has no owner and no siblings, and may be of an ADD that has not yet written it", uptime, func(n *node) {
			n.file("10.0.0.2", "", old)
			n.file("10.0.0.3", "", time.Second)
			n.file("10.0.0.4", " \r\n", old)
			n.file("10.0.0.5", "", old)
		}, func() []podsource.Answer { return plain(sandbox("web", web, "10.0.0.5")) },
			map[string]Reason{"10.0.0.2": ReleasedEmpty, "10.0.0.3": TooYoung, "10.0.0.4": ReleasedEmpty, "10.0.0.5": AddressClaimed}},
		{"28 pods in the node's network claim no address", uptime, made(owners{"10.0.0.2": leaked, "10.0.0.3": web}), kubelet(
			podsource.Pod{NamespacedName: named("logs"), HostNetwork: true, IPs: ips("10.0.0.2")},
			podsource.Pod{UID: "dns", HostNetwork: true, IPs: ips("10.0.0.2")},
			podsource.Pod{ContainerIDs: []string{hex64("dns")}, HostNetwork: true, IPs: ips("10.0.0.2")}, sandbox("1", web),
		), map[string]Reason{"10.0.0.2": ReleasedLeak, "10.0.0.3": ContainerLive}},
		{"31 pods that failed stay in the API for days", uptime, made(owners{"10.0.0.2": leaked}), func() []podsource.Answer {
			long := time.Now().Add(-48 * time.Hour)
			return plain(other, podsource.Pod{UID: "1", FinishedAt: long}, podsource.Pod{UID: "2", StartedAt: long, FinishedAt: long})
		}, map[string]Reason{"10.0.0.2": ReleasedLeak}},
		{"36 a start that is not reported yet", uptime, made(owners{"10.0.0.2": web, "10.0.0.3": leaked}),
			kubelet(starts(), podsource.Pod{IPs: ips("10.0.0.3")}), map[string]Reason{"10.0.0.2": StartingNoEnd, "10.0.0.3": AddressClaimed}},
		{"36 a start in the future is unknown", uptime, made(owners{"10.0.0.2": web}),
			func() []podsource.Answer { return []podsource.Answer{kubeletAnswer(stuck(-old))} }, map[string]Reason{"10.0.0.2": StartingNoEnd}},
		{"38 the old sandbox of a starting pod is an entry of its own (cri-o#4221)", uptime, func(n *node) {
			n.reserve("10.0.0.2", web, 8*time.Minute) // its ADD is in flight
			n.reserve("10.0.0.3", hex64("old"), old)
			n.reserve("10.0.0.4", leaked, 2*old)
		}, func() []podsource.Answer {
			return []podsource.Answer{kubeletAnswer(stuck(90 * time.Minute)), criAnswer(sandbox("stuck", hex64("old"), "10.0.0.3"))} // NOTREADY
		}, map[string]Reason{"10.0.0.2": PodStarting, "10.0.0.3": ContainerLive, "10.0.0.4": ReleasedLeak}},
		// A static pod has a new start after a restart of kubelet, and CRI-O adopts its sandbox. So
		// the source must report the start as unknown.
		{"76 with the new start of a static pod it would lose its address", uptime, made(owners{"10.0.0.2": web}),
			func() []podsource.Answer { return []podsource.Answer{kubeletAnswer(stuck(0))} }, map[string]Reason{"10.0.0.2": ReleasedLeak}},
		{"76 a static pod has more addresses than these", uptime, made(owners{"10.0.0.2": web}),
			kubelet(podsource.Pod{UID: "1", IPs: ips("10.0.0.9"), MoreIPs: true}), map[string]Reason{"10.0.0.2": StartingNoEnd}},
		{"76 a container has more addresses than these", uptime, made(owners{"10.0.0.2": web}),
			kubelet(podsource.Pod{ContainerIDs: []string{leaked}, MoreIPs: true}), map[string]Reason{"10.0.0.2": StartingNoEnd}},
		{"80 a clock that was set after the boot: the ADD may be in flight", up, func(n *node) { n.reserve("10.0.0.2", web, 2*time.Hour) },
			func() []podsource.Answer { return []podsource.Answer{kubeletAnswer(), criAnswer()} },
			map[string]Reason{"10.0.0.2": UntrustedTimestamp}},
		{"80 the same, and the ADD is seen", up, func(n *node) { n.reserve("10.0.0.2", web, 2*time.Hour); n.reserve("10.0.0.3", leaked, 2*time.Hour) },
			func() []podsource.Answer {
				return []podsource.Answer{netnsAnswer(adding(web)), recordAnswer([]string{network1}), kubeletAnswer()}
			},
			map[string]Reason{"10.0.0.2": ContainerLive, "10.0.0.3": ReleasedLeak}},
		{"80 ADDs are seen, and its time is in the future", uptime, func(n *node) { n.reserve("10.0.0.2", web, -old); n.reserve("10.0.0.3", leaked, old) },
			func() []podsource.Answer { return []podsource.Answer{netnsAnswer(), recordAnswer([]string{network1})} },
			map[string]Reason{"10.0.0.2": UntrustedTimestamp, "10.0.0.3": ReleasedLeak}},
		{"80 ADDs are seen, and the source that names containers is late", up, func(n *node) { n.reserve("10.0.0.2", web, 2*time.Hour) },
			func() []podsource.Answer { return []podsource.Answer{netnsAnswer(), criAnswer()} },
			map[string]Reason{"10.0.0.2": UntrustedTimestamp}},
		{"80 ADDs are seen, and the cache's entry does not show whether it lives", up, func(n *node) { n.reserve("10.0.0.2", web, 2*time.Hour) },
			func() []podsource.Answer {
				entry := podsource.Pod{Network: network1, ContainerIDs: []string{leaked, web}, Unproven: true}
				return []podsource.Answer{netnsAnswer(), cacheAnswer([]podsource.Pod{attached(second, hex64("db")), entry}), criAnswer()}
			},
			map[string]Reason{"10.0.0.2": UntrustedTimestamp}},
		{"84 the file at a live pod's address is damaged: its second network is kept", uptime, func(n *node) {
			n.file("10.0.0.3", "\x00\x00\x00", time.Hour)
			n.reserveIn(second, "10.9.0.2", web, 61*time.Minute)
			n.reserveIn(second, "10.9.0.3", leaked, 3*time.Hour)
		}, func() []podsource.Answer {
			p := stuck(2 * time.Hour)
			p.IPs = ips("10.0.0.3")
			return []podsource.Answer{kubeletAnswer(p)}
		}, map[string]Reason{"10.0.0.3": AddressClaimed, "second/10.9.0.2": StartingNoEnd, "second/10.9.0.3": ReleasedLeak}},
		{"84 ... or empty", uptime, func(n *node) { n.reserve("10.0.0.2", web, old); n.file("10.0.0.3", "", old) },
			kubelet(podsource.Pod{UID: "1", IPs: ips("10.0.0.3")}, sandbox("1", "c", "10.0.0.3")),
			map[string]Reason{"10.0.0.2": StartingNoEnd, "10.0.0.3": AddressClaimed}},
		{"84 a claimant's container is known: it has no other", uptime, func(n *node) {
			n.file("10.0.0.2", "", time.Hour)
			n.reserveIn(second, "10.9.0.2", leaked, time.Hour)
		}, func() []podsource.Answer { return []podsource.Answer{criAnswer(sandbox("1", web, "10.0.0.2"))} },
			map[string]Reason{"10.0.0.2": AddressClaimed, "second/10.9.0.2": ReleasedLeak}},
		{"87 the address is configured in the node's own namespace", uptime, func(n *node) {
			n.reserve("10.0.0.2", leaked, old)
			n.reserve("10.0.0.3", web, old)
			n.file("192.168.0.1", "", old) // the namespace has no other
		}, func() []podsource.Answer { return []podsource.Answer{netnsAnswer(nodesOwn), kubeletAnswer()} },
			map[string]Reason{"10.0.0.2": AddressClaimed, "10.0.0.3": ReleasedLeak, "192.168.0.1": AddressClaimed}},
		{"103 the second family's ADD failed", uptime, func(n *node) { n.reserve("fd00::2", leaked, old) },
			func() []podsource.Answer { return plain(other) }, map[string]Reason{"fd00::2": ReleasedLeak}},
		{"104 a status shows another pod's address", uptime, func(n *node) { n.reserve("10.0.0.2", web, old) },
			func() []podsource.Answer {
				return []podsource.Answer{kubeletAnswer(podsource.Pod{NamespacedName: named("web"), IPs: ips("10.0.0.2")}, podsource.Pod{NamespacedName: named("db"), IPs: ips("10.0.0.2")})}
			}, map[string]Reason{"10.0.0.2": TwoPods}},
		{"105 a DEL came between the halves of an ADD, and another's ADD ended after its own DEL", uptime, func(n *node) {
			n.reserveIn(second, "10.9.0.2", leaked, old)
			n.reserve("10.0.0.2", leaked, old)
			n.reserve("10.0.0.3", web, old)
		}, func() []podsource.Answer { return []podsource.Answer{criAnswer(sandbox("1", web))} },
			map[string]Reason{"10.0.0.2": ReleasedLeak, "second/10.9.0.2": ReleasedLeak, "10.0.0.3": ContainerLive}},
		{"112 a pod on the host's network is stuck for days", uptime, func(n *node) { n.reserve("10.0.0.2", leaked, old) },
			func() []podsource.Answer {
				p := stuck(72 * time.Hour)
				p.HostNetwork = true
				return []podsource.Answer{kubeletAnswer(p, podsource.Pod{HostNetwork: true})}
			}, map[string]Reason{"10.0.0.2": ReleasedLeak}},
		{"117 the node's own address needs no entry in the cache", uptime, func(n *node) {
			n.reserve("10.0.0.2", hex64("node"), old)
			n.reserve("10.0.0.3", leaked, time.Minute)
		}, func() []podsource.Answer {
			return []podsource.Answer{netnsAnswer(nodesOwn), cacheAnswer(nil, stale(network1, leaked))}
		}, map[string]Reason{"10.0.0.2": AddressClaimed, "10.0.0.3": ReleasedLeak}},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.network(second)
			c.make(n)
			opts := Options{MinAge: time.Minute, AllowForeign: []string{}}
			r := newReconciler(t, n.store, []string{network1, second}, answers(c.members()...), opts, &clocks{uptime: c.uptime})
			report := n.reconcile(r)
			n.checkReasons(report, c.want)
			if p := report.Reservations[0].Pod; strings.HasPrefix(c.reason, "87") && !strings.Contains(p.From, "node's own") {
				t.Errorf("the report does not say where: %+v", p)
			}
			nodes := strings.HasPrefix(c.reason, "87") || strings.HasPrefix(c.reason, "28")
			if nodes && (report.Unreserved != nil || report.Duplicates != nil) {
				t.Errorf("the node's address counts as a pod's: unreserved %v, duplicates %v", report.Unreserved, report.Duplicates)
			}
		}))
	}
}

// Something changes the mode of every file every few minutes.
func TestHazard107ModesChange(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", -time.Hour) // its time can't be trusted
		r := n.reconciler(podsource.Static{other}, Options{})
		for i := range 4 {
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Young})
			must(t, os.Chmod(n.path("10.0.0.2"), 0o600+os.FileMode(i%2)*0o44))
			time.Sleep(DefaultMinAge / 4)
		}
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
	})(t)
}

// Two small steps back, thirty days apart, with a stuck pod's start between them.
func TestHazard83TwoSmallStepsBack(t *testing.T) {
	inBubble(func(t *testing.T) {
		const day, step = 24 * time.Hour, 150 * time.Millisecond
		n := newNode(t)
		clk := &clocks{uptime: 30 * day}
		var pods podsource.Static
		r := newReconciler(t, n.store, []string{network1}, podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) { return pods, nil }), Options{}, clk)
		pods = podsource.Static{other}
		n.reconcile(r)
		clk.step -= step
		n.reconcile(r)
		time.Sleep(15 * day)
		pods = append(pods, startingPod("stuck", clk.wall()))
		for i, before := range []time.Duration{5 * day, 2*step + time.Second, 2*step - time.Millisecond} {
			n.fileAt(network1, "10.0.0."+string('2'+rune(i)), hex64("leaked")+string('a'+rune(i)), clk.wall().Add(-before))
		}
		time.Sleep(15 * day)
		clk.step -= step
		n.reconcile(r)
		time.Sleep(DefaultMinAge)
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Released, "10.0.0.4": Starting})
	})(t)
}

// The cache's check fails for a moment, since a sandbox that is about to be removed has an address
// and no entry.
func TestHazard108TheCheckFailsForAMoment(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("killed"), time.Minute)
		n.reserve("10.0.0.3", hex64("leaked"), time.Minute)
		cache := cacheAnswer(nil, stale(network1, hex64("leaked")))
		source := inTurn([]podsource.Answer{netnsAnswer(configured("10.0.0.2")), cache, criAnswer()}, []podsource.Answer{netnsAnswer(), cache, criAnswer()})
		r := n.reconciler(source, Options{MinAge: time.Second})
		report := n.reconcile(r)
		n.checkReasons(report, map[string]Reason{"10.0.0.2": AddressClaimed, "10.0.0.3": NotYetListed})
		if pause, _ := new(pauses).after(&report, nil, time.Hour); pause > 2*minRecheck {
			t.Errorf("the next look comes after %v", pause)
		}
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Released})
	})(t)
}

// It is only worth a look soon if the cache could make something a leak that may be released.
func TestHazard108NextCheck(t *testing.T) {
	at := reading{wall: time.Now(), mono: time.Hour, boot: 30 * 24 * time.Hour}
	for _, c := range []struct {
		network   string
		age, want time.Duration // until the next check; zero: there is none
	}{{network1, time.Minute, 1}, {"second", time.Minute, DefaultMinAge - time.Minute}, {network1, old, 0}} {
		rs := []hostlocal.Reservation{owned(c.network, "10.0.0.2", hex64("killed")), owned(c.network, "10.0.0.3", hex64("leaked"))}
		rs[1].ReservedAt = at.wall.Add(-c.age)
		look := []podsource.Answer{netnsAnswer(configured("10.0.0.2")), cacheAnswer(nil, stale(c.network, hex64("leaked"))), criAnswer()}
		next := judge(rs, look, at, Options{MinAge: time.Second}).NextCheck
		if in := next.Sub(at.wall); next.IsZero() != (c.want == 0) || c.want > 0 && in != c.want && in != c.want-1 {
			t.Errorf("%s, %v old: the next check is at %v", c.network, c.age, next)
		}
	}
}

// The same address is live in two separate networks, and each claim names its network.
func TestHazard109OneAddressInTwoNetworks(t *testing.T) {
	n := newNode(t)
	n.network("second")
	n.reserve("10.0.0.2", hex64("web"), old)
	n.reserveIn("second", "10.0.0.2", hex64("db"), old)
	web, db := attached(network1, hex64("web"), "10.0.0.2"), attached("second", hex64("db"), "10.0.0.2")
	report := n.pass(answers(netnsAnswer(), cacheAnswer([]podsource.Pod{web, db})), Options{})
	n.checkReasons(report, map[string]Reason{"10.0.0.2": ContainerLive, "second/10.0.0.2": ContainerLive})
	if report.Duplicates != nil {
		t.Errorf("duplicates: %v", report.Duplicates)
	}
	for _, networks := range [][2]string{{network1, network1}, {"", network1}, {network1, ""}} { // it may be one network
		web.Network, db.Network = networks[0], networks[1]
		if d := n.pass(answers(kubeletAnswer(web, db)), Options{}).Duplicates; len(d) != 1 || len(d[0].Pods) != 2 {
			t.Errorf("in the networks %q: duplicates %v", networks, d)
		}
	}
}

// A source gives IDs that own nothing, or names a network that has no directory: the report says so.
func TestHazard85NotesOfASource(t *testing.T) {
	n := newNode(t)
	n.network("another")
	n.reserve("10.0.0.2", hex64("web"), old)
	for _, c := range []struct {
		reason string
		answer podsource.Answer
		note   string
	}{
		{"IDs of containers", criAnswer(sandbox("1", hex64("container of web"))), "none of the 1 containers that it names owns a reservation"},
		{"one of them owns one", criAnswer(sandbox("1", hex64("container of web")), sandbox("2", hex64("web"))), ""},
		{"on the host's network or finished", criAnswer(podsource.Pod{ContainerIDs: []string{hex64("done")}, Finished: true}), ""},
		{"a list of pods", kubeletAnswer(sandbox("1", hex64("container of web"))), ""},
		{"all of a pod's", criAnswer(podsource.Pod{ContainerIDs: []string{hex64("container of web"), hex64("web")}}), ""},
		{"the second of two networks", kubeletAnswer(podsource.Pod{Network: network1, IPs: ips("10.0.0.2")}), ""},
		{"a wrong network", kubeletAnswer(podsource.Pod{Network: "pod-net", IPs: ips("10.0.0.2")}, other), "pod-net, which has no directory"},
		{"a cache has entries of all networks", cacheAnswer([]podsource.Pod{attached("lo", hex64("container of web"))}), ""},
	} {
		report := n.pass(answers(c.answer, recordAnswer([]string{network1})), Options{DryRun: true})
		got := report.Sources[0].Note
		if c.answer.Cache == nil && (c.note == "") != (got == "") || !strings.Contains(got, c.note) {
			t.Errorf("%s: the report notes %q, want %q", c.reason, got, c.note)
		}
	}
	if got := newNode(t).pass(answers(criAnswer(sandbox("1", hex64("web")))), Options{}).Sources[0].Note; got != "" {
		t.Errorf("where nothing is reserved the report notes %q", got)
	}
}
