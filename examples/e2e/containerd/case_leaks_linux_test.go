// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// The network is renamed between a pod's ADD and its DEL. The DEL calls host-local for the new
// network, which has no reservation.
//
// Guard: [Source.Pods] names each sandbox in all networks, and [gc.New] requires the networks in
// which it may release.
func TestHazard21NetworkRenamedOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		const old, renamed = "podnet", "podnet2"
		live, victim := n.run("live"), n.run("victim")
		n.configure(renamed)
		n.awaitNetwork(renamed)
		n.remove(victim.id)
		young := n.run("young")
		same(t, "reservations", "the DEL was for the other network", holding(live, victim), n.reservations(old))

		n.age(old)
		n.age(renamed)
		same(t, "released", "the pass is for another network", nil, n.release(renamed).released)
		same(t, "released", "no sandbox has them", holding(victim), n.release(old).released)
		same(t, "reservations", "in the old network", holding(live), n.reservations(old))
		same(t, "reservations", "in the new network", holding(young), n.reservations(renamed))
	})
}

// awaitNetwork waits until the runtime has loaded the network's configuration.
func (n *node) awaitNetwork(name string) {
	n.t.Helper()
	n.await("containerd to load the network "+name, func(ctx context.Context) error {
		answer, err := n.cri.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		if err == nil && !strings.Contains(answer.GetInfo()["cniconfig"], fmt.Sprintf("%q", name)) {
			err = fmt.Errorf("it has %s", answer.GetInfo()["cniconfig"])
		}
		return err
	})
}

// An ADD fails after its IPAM, and the DEL fails, too. containerd 2 removes its record of such
// a sandbox. containerd 1.6 lists it as not ready.
//
// Guard: [gc.Options.MinAge] keeps young reservations, and [Source.Pods] those of listed
// sandboxes.
func TestHazard21FailedADDAndFailedDELOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		n.fail("victim")
		before := n.reservations(n.network)
		ids := otherContainers(before, live)
		if len(before) != 4 || len(ids) != 1 {
			t.Fatalf("nothing has leaked: the reservations are %v", before)
		}
		same(t, "released", "younger than the minimum age", nil, n.release(n.network).released)
		if n.name == debian().name {
			n.wantState(ids[0], notReady, "its DEL must be repeated")
			n.keptThenFreed(ids[0], live)
			return
		}
		n.age(n.network)
		same(t, "released", "no sandbox has them", verdicts(ids[0], n.heldBy(n.network, ids[0])...), n.release(n.network).released)
		same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
		same(t, "released", "everything was released by the first pass", nil, n.release(n.network).released)
	})
}

// fail runs a pod whose ADD fails after its IPAM, and whose DEL fails, too.
func (n *node) fail(name string) {
	n.t.Helper()
	n.tell("ADD", name, "fail")
	n.tell("DEL", name, "fail")
	p, err := n.tryRun(n.t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), "gate: told to fail ADD") {
		n.t.Fatalf("pod %s did not fail in the plugin gate: %+v, %v", name, p, err)
	}
	n.untell("ADD", name)
	n.untell("DEL", name)
}

// leak removes pods while their network has another name, so that their reservations stay. It
// makes all reservations old.
func (n *node) leak(pods ...pod) {
	n.t.Helper()
	network := n.network
	n.configure("elsewhere")
	n.awaitNetwork("elsewhere")
	for _, p := range pods {
		n.remove(p.id)
	}
	n.configure(network)
	n.awaitNetwork(network)
	n.age(network)
}

// All addresses are leaked, so no pod can start. Then the agent starts.
func TestPoolOfSixLeakedOnContainerd(t *testing.T) {
	const size = 6
	for _, f := range []flavour{current(), debian()} {
		t.Run(f.name, func(t *testing.T) {
			n := newNode(t, f, func(n *node) { n.pool = size })
			n.runAgent()
			victims := n.runSome("victim", size)
			n.leak(victims...)
			same(t, "reservations", "all addresses", holding(victims...), n.reservations(n.network))
			const full = "no IP addresses available"
			if _, err := n.tryRun(t.Context(), "late"); err == nil || !strings.Contains(err.Error(), full) {
				t.Fatalf("with all addresses leaked a pod must fail with %q: %v", full, err)
			}
			report := n.hook(gc.Options{})
			same(t, "hook", "no pod holds any of them", map[gc.Verdict]int{gc.Released: 2 * size}, report.Counts())
			pods := n.runSome("web", size)
			same(t, "reservations", "as many pods as addresses", holding(pods...), n.reservations(n.network))
		})
	}
}
