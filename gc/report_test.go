// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The report of a pass with two sources.
func TestReportOfAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.network("second")
		n.reserve("10.0.0.2", hex64("leaked"), old)
		n.reserve("10.0.0.10", hex64("web"), old)
		n.reserve("fd00::2", hex64("db"), old)
		n.reserve("second/10.0.0.2", hex64("leaked"), old)
		begun := time.Now()
		var call context.Context
		slow := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
			call = ctx
			time.Sleep(3 * time.Second)
			return []podsource.Pod{sandbox("1", hex64("web"), "10.0.0.10", "10.0.0.77")}, nil
		})
		kubelet := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			return podsource.Answer{Source: "kubelet", Networks: every, AsOf: begun.Add(time.Second), Pods: []podsource.Pod{
				{NamespacedName: named("db"), IPs: ips("fd00::2", "::ffff:10.0.0.77")}}}, nil
		})
		report := n.pass(podsource.Union(slow, kubelet), Options{})
		want := []SourceReport{{Name: "source 1", Entries: 1, Took: 3 * time.Second}, {Name: "kubelet", Entries: 1, AsOf: begun.Add(time.Second)}}
		if diff := cmp.Diff(want, report.Sources); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
		if report.Duration < 3*time.Second || !report.Started.Equal(begun) || report.Looks != 1 ||
			report.DataDir != n.dataDir || report.DataDirMissing || !slices.Equal(report.Networks, []string{network1}) ||
			report.Err != nil || call.Err() == nil {
			t.Errorf("got %+v, and error %v of the context of a call that has ended", report, call.Err())
		}
		if len(report.Unreserved) != 1 || report.Unreserved[0].IP != ips("10.0.0.77")[0] {
			t.Errorf("unreserved: %v, want 10.0.0.77, once", report.Unreserved)
		}
	})
}

// A reference to a pod says where the claim comes from: the source, and what it saw.
func TestReportSaysWhereAClaimComesFrom(t *testing.T) {
	for _, c := range []struct {
		source string
		pod    podsource.Pod
		from   string
		text   string
	}{
		{"kubelet", podsource.Pod{NamespacedName: named("web"), UID: "1"}, "kubelet", "default/web"},
		{"netns", podsource.Pod{Origin: "namespace 4026, process 47"}, "netns: namespace 4026, process 47", "netns: namespace 4026, process 47"},
		{"cri", podsource.Pod{UID: "1", Origin: "sandbox abc", NotRunning: true}, "cri: sandbox abc", "1"},
		{"", podsource.Pod{Origin: "cache file x"}, "cache file x", "cache file x"},
		{"", podsource.Pod{ContainerIDs: []string{"abc"}}, "container abc", "container abc"},
		{"file", podsource.Pod{IPs: ips("10.0.0.2")}, "file: address 10.0.0.2", "file: address 10.0.0.2"},
		{"", podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{"abc"}}, "", "default/web"},
		{"", podsource.Pod{UID: "1", ContainerIDs: []string{"abc"}}, "", "1"},
		{"", podsource.Pod{}, "", "without a name"},
	} {
		ref := refOf(&c.pod, c.source)
		if ref.From() != c.from || ref.String() != c.text || ref.NotRunning != c.pod.NotRunning {
			t.Errorf("%+v of %q: from %q, as text %q; want %q and %q", c.pod, c.source, ref.From(), ref.String(), c.from, c.text)
		}
	}
	n := newNode(t) // nobody should remove a sandbox in whose network namespace something runs
	n.reserve("10.0.0.2", hex64("web"), old)
	sandbox := podsource.Pod{ContainerIDs: []string{hex64("web")}, IPs: ips("10.0.0.2"), NotRunning: true}
	report := n.pass(answers(criAnswer(sandbox), netnsAnswer(configured("10.0.0.2"))), Options{})
	if e := report.Reservations[0]; e.Reason != ContainerLive || e.Pod.Source != "netns" {
		t.Errorf("%v, by %v", e.Reason, e.Pod)
	}
}

// Releases, and a pass that has news, are logged at V(0), kept reservations at higher levels.
func TestLog(t *testing.T) {
	const released, kept, compared = "Released a leaked reservation", "Kept a reservation", "Compared reservations with live pods"
	keys := map[string]string{
		released: "IP containerID ifName network reason verdict",
		kept:     "IP containerID ifName network pod reason verdict", // of 10.0.0.4
		compared: "dataDir duplicates duration in-use malformed nextCheck note.netns released source.cri source.netns " +
			"unreserved young",
	}
	for verbosity, lines := range map[int]int{0: 0, 1: 0, 2: 2, 4: 3} {
		n, logs := newNode(t), newLogs(verbosity)
		n.reserve("10.0.0.2", hex64("leaked"), old)
		n.reserve("10.0.0.3", hex64("new"), young)
		n.reserve("10.0.0.4", hex64("web"), old)
		n.file("10.0.0.5", "a b c", old)
		web := podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{hex64("web")}}
		kernel := netnsAnswer(configured("10.0.0.9"), podsource.Pod{IPs: ips("10.0.0.9"), Origin: "another"})
		kernel.Note = "it rains"
		r := n.reconciler(answers(criAnswer(web), kernel), Options{Logger: logs.logger()})
		r.sleep = func(context.Context, time.Duration) bool { return true }
		n.reconcile(r)
		got := map[string]int{kept: 0}
		for _, line := range logs.lines {
			msg := fmt.Sprint(line["msg"])
			got[msg]++
			names := slices.DeleteFunc(slices.Sorted(maps.Keys(line)), func(k string) bool { return k == "msg" || k == "level" || k == "logger" })
			if diff := cmp.Diff(keys[msg], strings.Join(names, " ")); diff != "" && (msg != kept || line["IP"] == "10.0.0.4") {
				t.Errorf("keys of %v (-want +got):\n%s", msg, diff)
			}
		}
		if diff := cmp.Diff(map[string]int{released: 1, kept: lines, compared: 1}, got); diff != "" {
			t.Errorf("verbosity %d (-want +got):\n%s", verbosity, diff)
		}
		for _, c := range []struct {
			reason, content, claims string
			lines                   int
		}{
			{"no news", hex64("web"), "", min(1, verbosity)}, {"a malformed file", "a b c", "", 1}, {"a conflict", hex64("other"), "10.0.0.4", 1},
			{"an address without a reservation", hex64("web"), "203.0.113.9", 1},
		} {
			n, logs := newNode(t), newLogs(verbosity)
			n.file("10.0.0.4", c.content, old)
			web.IPs = ips(strings.Fields(c.claims)...)
			n.pass(answers(criAnswer(web), netnsAnswer(configured("192.0.2.9"))), Options{Logger: logs.logger()})
			if lines := logs.with(compared, "dataDir"); lines != c.lines {
				t.Errorf("verbosity %d: %d lines about a pass with %s", verbosity, lines, c.reason)
			}
		}
	}
}

// AtRisk reports the addresses that host-local may give to another pod.
func TestAtRisk(t *testing.T) {
	ours := iprange.Set{{First: netip.MustParseAddr("10.0.0.2"), Last: netip.MustParseAddr("10.0.0.9")}}
	web := &Pod{Name: "web"}
	for _, c := range []struct {
		reason string
		ip     string
		pod    *Pod
		ranges iprange.Set
		want   bool
	}{
		{"it is of a range", "10.0.0.2", web, ours, true},
		{"only the kernel shows it", "10.0.0.2", &Pod{}, ours, true},
		{"another plugin gave it", "192.0.2.2", web, ours, false},
		{"no range is known, and it is a pod's", "10.0.0.2", web, nil, true},
		{"no range is known, and it may be another runtime's", "172.17.0.2", &Pod{}, nil, false},
	} {
		if got := (Claim{netip.MustParseAddr(c.ip), []*Pod{{}, c.pod}}).AtRisk(c.ranges); got != c.want {
			t.Errorf("%s: %t", c.reason, got)
		}
	}
}

// The cost of an address that very many pods claim is limited.
func TestConflictingPodsAreLimited(t *testing.T) {
	var pods []*livePod
	for i := range 1000 {
		pods = append(pods, &livePod{Pod: &podsource.Pod{ContainerIDs: []string{fmt.Sprint(i)}}})
	}
	if got := len(conflicting(pods)); got != 32 {
		t.Errorf("%d of 1000 pods are compared with each other, want 32", got)
	}
}
