// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// This file tests R14: which containers a source could mean, which networks it speaks of,
// and which networks the caller named.

func TestForeignOwner(t *testing.T) {
	nerdctl, uuid, word := "default-"+hex64("nerdctl"), "3f2b8a06-5b0c-4a55-9d2e-0c5a2ae9d0f1", "reserved-by-hand"
	before := asOf(netnsAnswer(), -time.Second)
	ofSecond, gap := recordAnswer([]string{"second"}), recordAnswer([]string{network1})
	gap.Gaps = []podsource.Gap{{}}
	named := podsource.Answer{Pods: []podsource.Pod{other}, Networks: every, Names: podsource.AnyContainer}
	for _, c := range []struct {
		reason              string
		members             []podsource.Answer
		allow               []string
		nerdctl, uuid, word Reason
	}{
		{"a runtime means 64 hex digits", []podsource.Answer{criAnswer()}, nil, ForeignOwner, ForeignOwner, ForeignOwner},
		{"so does a list of Kubernetes pods", plain(other), nil, ForeignOwner, ForeignOwner, ForeignOwner},
		{"a source that sees addresses has answered", []podsource.Answer{kubeletAnswer(), netnsAnswer()}, nil, ReleasedLeak, ReleasedLeak, ForeignOwner},
		{"... from before the owner was first seen", []podsource.Answer{kubeletAnswer(), before}, nil, ForeignOwner, ForeignOwner, ForeignOwner},
		{"a record alone", []podsource.Answer{recordAnswer([]string{network1})}, nil, ReleasedLeak, ReleasedLeak, ForeignOwner},
		{"a record names any container", []podsource.Answer{kubeletAnswer(), recordAnswer([]string{network1})}, nil, ReleasedLeak, ReleasedLeak, ForeignOwner},
		{"... in its network", []podsource.Answer{kubeletAnswer(), ofSecond}, nil, ForeignOwner, ForeignOwner, ForeignOwner},
		{"... and not in its gap", []podsource.Answer{kubeletAnswer(), gap}, nil, ForeignOwner, ForeignOwner, ForeignOwner},
		{"... which makes nobody foreign that another names", []podsource.Answer{gap, named}, nil, ReleasedLeak, ReleasedLeak, ForeignOwner},
		{"a cache has an entry, so it is no free text", []podsource.Answer{kubeletAnswer(), netnsAnswer(), cacheAnswer(nil, stale("third", word))}, nil,
			ReleasedLeak, ReleasedLeak, ReleasedLeak},
		{"the caller allows a prefix", []podsource.Answer{kubeletAnswer()}, []string{"x", "default-"}, ReleasedLeak, ForeignOwner, ForeignOwner},
		{"... of free text", []podsource.Answer{kubeletAnswer()}, []string{"reserved-"}, ForeignOwner, ForeignOwner, ReleasedLeak},
		{"... or any", []podsource.Answer{kubeletAnswer()}, []string{"*"}, ReleasedLeak, ReleasedLeak, ReleasedLeak},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", nerdctl, old)
			n.reserve("10.0.0.3", uuid, old)
			n.reserve("10.0.0.4", word, old)
			n.reserve("10.0.0.5", hex64("leaked"), old)
			n.file("10.0.0.6", "", old)
			n.checkReasons(n.pass(answers(c.members...), Options{AllowForeign: append([]string{}, c.allow...)}), map[string]Reason{
				"10.0.0.2": c.nerdctl, "10.0.0.3": c.uuid, "10.0.0.4": c.word, "10.0.0.5": ReleasedLeak, "10.0.0.6": ReleasedEmpty})
		})
	}
}

// Of a choice between two sources each look asks another one: the first lists Kubernetes pods.
func TestForeignOwnerInOneLook(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "default-"+hex64("nerdctl"), old)
		n.reserve("10.0.0.3", hex64("leaked"), old) // requires a second look
		adds := netnsAnswer()
		adds.SeesAddresses = false
		any := podsource.Answer{Pods: []podsource.Pod{other}, Networks: every, Names: podsource.AnyContainer}
		report := n.pass(inTurn([]podsource.Answer{adds, kubeletAnswer()}, []podsource.Answer{adds, any}), Options{AllowForeign: []string{}})
		n.checkReasons(report, map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": ReleasedLeak})
	})(t)
}

// An agent calls the plugin for itself, and an operator blocks an address by a word: an owner in
// free text is kept with any sources.
func TestHazard86FreeText(t *testing.T) {
	hex, uuid := hex64("x"), "3f2b8a06-5b0c-4a55-9d2e-0c5a2ae9d0f1"
	for owner, want := range map[string]bool{
		"cilium-ingress": true, "blocked": true, hex[1:]: true, hex + "-": true, uuid[1:]: true, "3f2b8a06_5b0c-4a55-9d2e-0c5a2ae9d0f1": true,
		strings.Repeat("-", 36): true, "g" + hex[1:]: true,
		hex: false, "default-" + hex: false, strings.ToUpper(hex): false, uuid: false, "vm-" + uuid: false,
	} {
		if got := !container.MatchString(owner); got != want {
			t.Errorf("%q is free text: %t", owner, got)
		}
	}
	n := newNode(t)
	n.reserve("10.0.0.2", "cilium-ingress", 24*time.Hour)
	n.reserve("10.0.0.3", hex64("leaked"), 24*time.Hour)
	all := answers(netnsAnswer(), cacheAnswer(nil, stale(network1, hex64("leaked"))), recordAnswer([]string{network1}), criAnswer(), kubeletAnswer())
	report := n.atStartup(n.reconciler(all, Options{AllowForeign: []string{}}), NoADDInFlight)
	n.checkReasons(report, map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": ReleasedLeak})
}

// Nothing is released in a network of which no answer speaks.
func TestHazard74NobodySpeaksOfTheNetwork(t *testing.T) {
	const x, y = "x", "y"
	speaks := func(networks []string, supplementary bool) podsource.Answer {
		return podsource.Answer{Pods: []podsource.Pod{other}, Networks: networks, Supplementary: supplementary}
	}
	request := recordAnswer([]string{x})
	request.Source = "cnigc"
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		x, y    Reason
	}{
		{"a GC request for one of the two", []podsource.Answer{request}, ReleasedLeak, NoSourceForNetwork},
		{"every network", []podsource.Answer{speaks(every, false)}, ReleasedLeak, ReleasedLeak},
		{"a supplementary answer speaks of none by itself", []podsource.Answer{speaks(nil, true)}, NoSourceForNetwork, NoSourceForNetwork},
		{"... except of networks that it names", []podsource.Answer{speaks([]string{y}, true)}, NoSourceForNetwork, ReleasedLeak},
		{"namespaces alone", []podsource.Answer{netnsAnswer()}, NoSourceForNetwork, NoSourceForNetwork},
		{"a cache alone", []podsource.Answer{cacheAnswer(nil, stale(x, hex64("leaked")), stale(y, hex64("leaked")))}, NoSourceForNetwork, NoSourceForNetwork},
		{"both, where the cache passed", []podsource.Answer{netnsAnswer(), cacheAnswer(nil, stale(x, hex64("leaked")))}, ReleasedLeak, NoSourceForNetwork},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.network(x)
			n.network(y)
			n.reserveIn(x, "10.1.0.2", hex64("leaked"), old)
			n.reserveIn(y, "10.2.0.2", hex64("leaked2"), old)
			if c.reason == "a cache alone" || c.reason == "both, where the cache passed" {
				n.reserveIn(y, "10.2.0.2", hex64("leaked"), old)
			}
			r := n.reconcilerOf([]string{x, y}, answers(c.members...), Options{})
			n.checkReasons(n.reconcile(r), map[string]Reason{x + "/10.1.0.2": c.x, y + "/10.2.0.2": c.y})
		})
	}
}

// A reservation without a sandbox is released in the networks that are named, and in no
// other, of whatever networks the sources speak.
func TestHazard21FailedDELAndRenamedNetwork(t *testing.T) {
	for _, source := range []podsource.Source{
		podsource.Static{{ContainerIDs: []string{hex64("live")}}},
		answers(netnsAnswer(), criAnswer(sandbox("1", hex64("live"))), recordAnswer([]string{network1, "renamed"})),
	} {
		n := newNode(t)
		n.network("renamed")
		n.reserve("10.0.0.2", hex64("failed add"), old)
		n.reserveIn("renamed", "10.0.0.2", hex64("live"), old)
		n.reserveIn("renamed", "10.0.0.3", hex64("failed add"), old)
		n.fileIn("renamed", "10.0.0.4", "", old)
		n.reserveIn("renamed", "10.0.0.5", hex64("young"), young)
		n.checkReasons(n.pass(source, Options{}), map[string]Reason{
			"10.0.0.2": ReleasedLeak, "renamed/10.0.0.2": ContainerLive, "renamed/10.0.0.3": NetworkNotNamed,
			"renamed/10.0.0.4": NetworkNotNamed, "renamed/10.0.0.5": TooYoung})
		renamed := n.reconcile(n.reconcilerOf([]string{"renamed"}, source, Options{}))
		n.checkReasons(renamed, map[string]Reason{
			"renamed/10.0.0.2": ContainerLive, "renamed/10.0.0.3": ReleasedLeak,
			"renamed/10.0.0.4": ReleasedEmpty, "renamed/10.0.0.5": TooYoung})
	}
}

// AllNetworks means every network that has a directory when a pass begins.
func TestAllNetworks(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "dead", old)
	source := answers(kubeletAnswer(), netnsAnswer())
	r := n.reconcilerOf([]string{AllNetworks}, source, Options{})
	n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
	n.network("later")
	n.reserveIn("later", "10.1.0.2", "dead", old)
	report := n.reconcile(r)
	n.check(report, map[string]Verdict{"later/10.1.0.2": Released})
	if diff := cmp.Diff([]string{"later", network1}, report.Networks); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
	none := newReconciler(t, hostlocal.New(filepath.Join(t.TempDir(), "none")), []string{AllNetworks}, source, Options{}, &clocks{})
	if report := n.reconcile(none); !report.DataDirMissing || len(report.Networks) != 0 {
		t.Errorf("without a data directory: %+v", report)
	}
}

// With AllNetworks any runtime may have containers. An ID like those of sandboxes does not
// show that the sources would name its container.
func TestHazard49AllNetworks(t *testing.T) {
	partial := netnsAnswer() // it could not read every process
	partial.SeesADDs, partial.SeesAddresses = nil, false
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		allow   []string
		want    Reason
	}{
		{"no namespace has the address", []podsource.Answer{criAnswer(), netnsAnswer()}, nil, ReleasedLeak},
		{"a namespace has it", []podsource.Answer{criAnswer(), netnsAnswer(configured("10.88.0.2"))}, nil, AddressClaimed},
		{"the kernel could only be read in part", []podsource.Answer{criAnswer(), partial}, nil, ForeignOwner},
		{"the kernel was not asked", []podsource.Answer{criAnswer()}, nil, ForeignOwner},
		{"plain pods alone", plain(other), nil, ForeignOwner},
		{"the caller allows any owner", []podsource.Answer{criAnswer()}, []string{"*"}, ReleasedLeak},
	} {
		n := newNode(t)
		n.network("podman")
		n.reserveIn("podman", "10.88.0.2", hex64("container of podman"), old)
		n.fileIn("podman", "10.88.0.3", "", old)
		report := n.reconcile(n.reconcilerOf([]string{AllNetworks}, answers(c.members...), Options{AllowForeign: append([]string{}, c.allow...)}))
		n.checkReasons(report, map[string]Reason{"podman/10.88.0.2": c.want, "podman/10.88.0.3": ReleasedEmpty})
		if t.Failed() {
			t.Fatal(c.reason)
		}
	}
}

// A record says nothing about reservations that were made in one of its gaps: neither that
// the container is not live, nor, with the hook's assertion, that no ADD is in flight.
// Another source that lists containers does.
func TestHazard51ReservedInAGap(t *testing.T) {
	const from, to = 2*time.Hour + 1, time.Hour + 1 // ago; not whole seconds, which have a coarser granularity
	gap := func(from, to time.Duration) podsource.Gap {
		var g podsource.Gap
		if from != 0 {
			g.From = time.Now().Add(-from)
		}
		if to != 0 {
			g.To = time.Now().Add(-to)
		}
		return g
	}
	for _, c := range []struct {
		reason   string
		age      time.Duration
		from, to time.Duration // of the gap; zero: none
		alone    Reason        // the record
		beside   Reason        // and a runtime, or a list of pods
	}{
		{"in it", 90 * time.Minute, from, to, NotRecorded, Unowned},
		{"at its beginning", from, from, to, NotRecorded, Unowned},
		{"a clock's tick before it", from + timestampGranularity, from, to, NotRecorded, Unowned},
		{"more than that before it", from + timestampGranularity + 1, from, to, Unowned, Unowned},
		{"... with a timestamp of whole seconds", from - 1 + 2*time.Second, from, to, NotRecorded, Unowned},
		{"at its end", to, from, to, NotRecorded, Unowned},
		{"after it", to - 1, from, to, Unowned, Unowned},
		{"before the end of one without a beginning", 700 * time.Hour, 0, to, NotRecorded, Unowned},
		{"since the beginning of one without an end", 10 * time.Minute, from, 0, NotRecorded, Unowned},
		{"before that", 3 * time.Hour, from, 0, Unowned, Unowned},
		{"in one without either", time.Hour, 0, 0, NotRecorded, Unowned},
		{"in it, and too young for the runtime", time.Minute, from, 0, NotRecorded, TooYoung},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.age)
			record := recordAnswer([]string{network1})
			record.Gaps = []podsource.Gap{gap(600*time.Hour, 599*time.Hour), gap(c.from, c.to)}
			for _, row := range []struct {
				members []podsource.Answer
				want    Reason
			}{
				{[]podsource.Answer{record}, c.alone}, {[]podsource.Answer{record, criAnswer()}, c.beside},
				{[]podsource.Answer{record, kubeletAnswer()}, c.beside},
				{[]podsource.Answer{record, recordAnswer([]string{network1})}, Unowned},
			} {
				report := n.atStartup(n.reconciler(answers(row.members...), Options{DryRun: true}), NoADDInFlight)
				n.checkReasons(report, map[string]Reason{"10.0.0.2": row.want})
			}
		}))
	}
	if !inGap([]podsource.Gap{gap(time.Hour, 0)}, &hostlocal.Reservation{}) {
		t.Error("a reservation without a timestamp may have been made in any gap")
	}
}

// The address of a nerdctl container was reserved in a gap of the record. The runtime
// could not mean that container either, so it is as foreign as without the record.
func TestHazard49ForeignInAGap(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "default-"+hex64("nerdctl"), time.Hour)
		n.reserve("10.0.0.3", "default-"+hex64("told"), 3*time.Hour)
		record := recordAnswer([]string{network1})
		record.Gaps = []podsource.Gap{{From: time.Now().Add(-2 * time.Hour), But: podsource.SandboxContainers}}
		n.reserve("10.0.0.4", hex64("leaked"), time.Hour)
		report := n.pass(answers(record), Options{DryRun: true})
		n.checkReasons(report, map[string]Reason{"10.0.0.2": NotRecorded, "10.0.0.3": Unowned, "10.0.0.4": Unowned})
		for _, beside := range []podsource.Answer{criAnswer(), kubeletAnswer()} {
			report := n.pass(answers(record, beside), Options{DryRun: true, AllowForeign: []string{}})
			n.checkReasons(report, map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": Unowned, "10.0.0.4": Unowned})
		}
	})(t)
}

// An agent that serves its ADDs has an empty store, a full pool and a pod that is stuck: what is
// from before the boot is released in the hook, what is of this boot is kept, unless the caller says
// that the store may be empty.
func TestHazard111EmptyStore(t *testing.T) {
	empty := podsource.Attachments([]string{network1}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) { return nil, nil })
	stuck := answers(kubeletAnswer(starts()))
	for _, c := range []struct {
		source podsource.Source
		want   Verdict // of what is of this boot
	}{{empty, Foreign}, {podsource.AllowEmpty(empty), Released}} {
		n := newNode(t)
		up := boottime.Since()
		n.reserve("10.0.0.2", hex64("before"), up+time.Hour)
		n.reserve("10.0.0.3", hex64("since"), up/2)
		r := newReconciler(t, n.store, []string{network1}, c.source, Options{}, &clocks{uptime: up})
		report := n.atStartup(r, NoADDInFlight)
		n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": c.want})
	}
	// Beside kubelet the stuck pod claims nothing that the store would name.
	n := newNode(t)
	n.reserve("10.0.0.2", hex64("before"), boottime.Since()+time.Hour)
	r := newReconciler(t, n.store, []string{network1}, podsource.Union(empty, stuck), Options{}, &clocks{uptime: boottime.Since()})
	report := n.atStartup(r, NoADDInFlight)
	n.check(report, map[string]Verdict{"10.0.0.2": Released})
}
