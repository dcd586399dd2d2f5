// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests R14: which containers a source could mean, which networks it speaks of,
// and which networks the caller named.

func TestForeignOwner(t *testing.T) {
	nerdctl, docker := "default-"+hex64("nerdctl"), "Docker_1"
	before := asOf(netnsAnswer(), -time.Second)
	twoForms := kubeletAnswer()
	twoForms.Forms = []podsource.Form{podsource.Hex64, "default-" + podsource.Hex64}
	alsoHere := podsource.Answer{Pods: []podsource.Pod{other}, Names: []podsource.Names{
		{Form: podsource.AnyForm, Networks: []string{"second"}}, {Form: podsource.Hex64, Networks: []string{network1}}}}
	allOfSecond := podsource.Answer{Source: "record", Pods: []podsource.Pod{other}, Names: []podsource.Names{{Form: podsource.AnyForm, Networks: []string{"second"}}}}
	both := map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": ForeignOwner, "10.0.0.4": ReleasedLeak, "10.0.0.5": ReleasedEmpty}
	docker1 := map[string]Reason{"10.0.0.2": ReleasedLeak, "10.0.0.3": ForeignOwner, "10.0.0.4": ReleasedLeak, "10.0.0.5": ReleasedEmpty}
	none := map[string]Reason{"10.0.0.2": ReleasedLeak, "10.0.0.3": ReleasedLeak, "10.0.0.4": ReleasedLeak, "10.0.0.5": ReleasedEmpty}
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		allow   []podsource.Form
		want    map[string]Reason
	}{
		{"a runtime means 64 hex digits", []podsource.Answer{criAnswer()}, nil, both},
		{"so does a list of Kubernetes pods", []podsource.Answer{kubeletAnswer()}, nil, both},
		{"one of two owners has a form that is meant", []podsource.Answer{twoForms}, nil, docker1},
		{"beside plain pods", []podsource.Answer{kubeletAnswer(), {Pods: []podsource.Pod{other}}}, nil, both},
		{"plain pods alone declare no form", []podsource.Answer{{Pods: []podsource.Pod{other}}}, nil, none},
		{"a source that sees addresses has answered", []podsource.Answer{kubeletAnswer(), netnsAnswer()}, nil, none},
		{"... from before the owner was first seen", []podsource.Answer{kubeletAnswer(), before}, nil, both},
		{"a record from before then means the same forms", []podsource.Answer{asOf(recordAnswer([]string{network1}), -time.Second)}, nil, none},
		{"a record means every form", []podsource.Answer{kubeletAnswer(), recordAnswer([]string{network1})}, nil, none},
		{"... in its network", []podsource.Answer{kubeletAnswer(), allOfSecond}, nil, both},
		{"a record of another network declares no forms in this one", []podsource.Answer{allOfSecond}, nil, none},
		{"... unless it also names containers in this one", []podsource.Answer{alsoHere}, nil, both},
		{"the caller allows a form", []podsource.Answer{kubeletAnswer()}, []podsource.Form{"default-" + podsource.Hex64}, docker1},
		{"the caller allows a form of another prefix", []podsource.Answer{kubeletAnswer()}, []podsource.Form{"k8s.io-" + podsource.Hex64}, both},
		{"the caller allows every form", []podsource.Answer{kubeletAnswer()}, []podsource.Form{"k8s.io-" + podsource.Hex64, podsource.AnyForm}, none},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", nerdctl, old)
			n.reserve("10.0.0.3", docker, old)
			n.reserve("10.0.0.4", hex64("leaked"), old)
			n.file("10.0.0.5", "", old)
			n.checkReasons(n.pass(answers(c.members...), Options{ReleaseForms: c.allow}), c.want)
		})
	}
	t.Run("a cache means the same forms where it lacks a record", func(t *testing.T) {
		cache := cacheAnswer(nil, stale(network1, hex64("leaked")))
		cache.Names = []podsource.Names{{Form: podsource.Hex64}}
		for _, seen := range [][]podsource.Pod{nil, {configured("10.0.0.4")}} {
			n := newNode(t)
			n.reserve("10.0.0.2", nerdctl, old)
			n.reserve("10.0.0.3", hex64("leaked"), old)
			n.reserve("10.0.0.4", hex64("web"), old)
			want := map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": ReleasedLeak, "10.0.0.4": ReleasedLeak}
			if seen != nil {
				want["10.0.0.3"], want["10.0.0.4"] = ForeignOwner, AddressClaimed
			}
			n.checkReasons(n.pass(answers(asOf(netnsAnswer(seen...), -time.Second), cache, podsource.Answer{Pods: []podsource.Pod{other}}), Options{}), want)
		}
	})
	t.Run("a cache means none in a network in which it has no record", func(t *testing.T) {
		cache := cacheAnswer(nil, stale(network1, hex64("leaked")))
		cache.Names = []podsource.Names{{Form: "default-" + podsource.Hex64}, {Form: podsource.Hex64}}
		n := newNode(t)
		n.reserve("10.0.0.2", docker, old)
		n.reserve("10.0.0.3", hex64("leaked"), old)
		n.network("second")
		n.reserveIn("second", "10.1.0.2", docker, old)
		n.reserveIn("second", "10.1.0.3", hex64("leaked"), old)
		r := n.reconcilerOf([]string{network1, "second"}, answers(asOf(netnsAnswer(), -time.Second), cache, podsource.Answer{Pods: []podsource.Pod{other}}), Options{})
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": ReleasedLeak,
			"second/10.1.0.2": ReleasedLeak, "second/10.1.0.3": ReleasedLeak})
	})
	t.Run("a form shows only which containers could not be meant", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", nerdctl, old)
		n.reserve("10.0.0.3", docker, old)
		n.reserve("10.0.0.4", nerdctl, old)
		live := podsource.Pod{UID: "1", ContainerIDs: []string{docker}}
		report := n.pass(answers(kubeletAnswer(live, podsource.Pod{UID: "2", IPs: ips("10.0.0.2")})), Options{})
		n.checkReasons(report, map[string]Reason{"10.0.0.2": AddressClaimed, "10.0.0.3": ContainerLive, "10.0.0.4": SiblingInUse})
	})
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
		{"requests for both", []podsource.Answer{request, recordAnswer([]string{y})}, ReleasedLeak, ReleasedLeak},
		{"plain pods speak of every network", []podsource.Answer{speaks(nil, false)}, ReleasedLeak, ReleasedLeak},
		{"a list of no networks speaks of none", []podsource.Answer{speaks([]string{}, false)}, NoSourceForNetwork, NoSourceForNetwork},
		{"a supplementary answer speaks of none by itself", []podsource.Answer{speaks(nil, true)}, NoSourceForNetwork, NoSourceForNetwork},
		{"... except of networks that it names", []podsource.Answer{speaks([]string{y}, true)}, NoSourceForNetwork, ReleasedLeak},
		{"namespaces alone", []podsource.Answer{netnsAnswer()}, NoSourceForNetwork, NoSourceForNetwork},
		{"a cache alone", []podsource.Answer{cacheAnswer(nil, stale(x, hex64("leaked")), stale(y, hex64("leaked")))}, NoSourceForNetwork, NoSourceForNetwork},
		{"both, where the cache passed", []podsource.Answer{netnsAnswer(), cacheAnswer(nil, stale(x, hex64("leaked")))}, ReleasedLeak, NoSourceForNetwork},
		{"only the first of two sources speaks of it", []podsource.Answer{request, netnsAnswer()}, ReleasedLeak, NoSourceForNetwork},
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
	t.Run("an entry counts in every network", func(t *testing.T) {
		n := newNode(t)
		n.network(x)
		n.network(y)
		n.reserveIn(y, "10.2.0.2", hex64("live"), old)
		n.reserveIn(y, "10.2.0.3", hex64("leaked"), old)
		r := n.reconcilerOf([]string{x, y}, answers(recordAnswer([]string{x}, hex64("live"))), Options{})
		n.checkReasons(n.reconcile(r), map[string]Reason{y + "/10.2.0.2": ContainerLive, y + "/10.2.0.3": NoSourceForNetwork})
	})
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
	if diff := cmp.Diff([]Network{{Name: "later"}, {Name: network1}}, report.Networks); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
	none := newReconciler(t, hostlocal.New(filepath.Join(t.TempDir(), "none")), []string{AllNetworks}, source, Options{}, &clocks{})
	if report := n.reconcile(none); !report.DataDirMissing || report.Networks != nil {
		t.Errorf("without a data directory: %+v", report)
	}
}

// With AllNetworks any runtime may have containers. An ID like those of sandboxes does not
// show that the sources would name its container.
func TestHazard49AllNetworks(t *testing.T) {
	partial := netnsAnswer() // it could not read every process
	partial.SeesADDs, partial.SeesAddresses = false, false
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		allow   []podsource.Form
		want    Reason
	}{
		{"no namespace has the address", []podsource.Answer{criAnswer(), netnsAnswer()}, nil, ReleasedLeak},
		{"a namespace has it", []podsource.Answer{criAnswer(), netnsAnswer(configured("10.88.0.2"))}, nil, AddressClaimed},
		{"the kernel could only be read in part", []podsource.Answer{criAnswer(), partial}, nil, ForeignOwner},
		{"the kernel was not asked", []podsource.Answer{criAnswer()}, nil, ForeignOwner},
		{"plain pods alone", []podsource.Answer{{Pods: []podsource.Pod{other}}}, nil, ForeignOwner},
		{"the caller allows the form", []podsource.Answer{criAnswer()}, []podsource.Form{podsource.Hex64}, ReleasedLeak},
	} {
		n := newNode(t)
		n.network("podman")
		n.reserveIn("podman", "10.88.0.2", hex64("container of podman"), old)
		n.fileIn("podman", "10.88.0.3", "", old)
		report := n.reconcile(n.reconcilerOf([]string{AllNetworks}, answers(c.members...), Options{ReleaseForms: c.allow}))
		n.checkReasons(report, map[string]Reason{"podman/10.88.0.2": c.want, "podman/10.88.0.3": ReleasedEmpty})
		if t.Failed() {
			t.Fatal(c.reason)
		}
	}
}
