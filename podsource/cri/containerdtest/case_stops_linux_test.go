// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// keptThenFreed checks that an old reservation stays while its sandbox is
// listed, and is gone when that was removed.
func (n *node) keptThenFreed(id string, others ...pod) {
	n.t.Helper()
	before := n.reservations(n.network)
	n.age(n.network)
	p := n.release(n.network)
	same(n.t, "released", "the sandbox is listed: "+n.sandboxes()[id], nil, p.released)
	same(n.t, "reservations", "after the pass", before, n.reservations(n.network))
	n.remove(id)
	n.release(n.network)
	same(n.t, "reservations", "after the sandbox's removal and a pass", holding(others...), n.reservations(n.network))
}

func (n *node) wantState(id, want, reason string) {
	n.t.Helper()
	if got := n.sandboxes()[id]; got != want {
		n.t.Fatalf("sandbox %s is in state %q, and %q was wanted: %s", id, got, want, reason)
	}
}

const notReady = "SANDBOX_NOTREADY"

// The runtime dies after the IPAM of an ADD. It has noted the sandbox by then,
// and lists it when it is back.
//
// Guard: [podsOf] takes sandboxes in any state.
func TestHazard05KilledDuringADDOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		starting := n.runHeld("victim")
		n.kill()
		n.goOn()
		<-starting.done
		ids := strangers(n.reservations(n.network), live)
		if starting.err == nil || len(ids) != 1 {
			t.Fatalf("the pod was to fail with one container's reservations left: %v, %v", starting.err, ids)
		}
		n.start()
		n.wantState(ids[0], notReady, "it was noted before the ADD")
		n.keptThenFreed(ids[0], live)
	})
}

// A plugin's binary is missing when a pod is stopped, as while it is updated.
//
// Guard: [podsOf] takes sandboxes in any state.
func TestHazard05PluginAbsentAtStopOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		n.must(os.Remove(n.path("cni/bin/gate")))
		if err := n.tryStop(t.Context(), victim.id); err == nil {
			t.Fatal("the pod was stopped without a plugin")
		}
		before := n.reservations(n.network)
		n.age(n.network)
		same(t, "released", "the sandbox is listed: "+n.sandboxes()[victim.id], nil, n.release(n.network).released)
		same(t, "reservations", "after the pass", before, n.reservations(n.network))
		n.must(os.Symlink(filepath.Join(os.Getenv(binEnv), "gate"), n.path("cni/bin/gate")))
		n.keptThenFreed(victim.id, live)
	})
}

// The network's configuration is missing when a pod is stopped.
//
// Guard: [podsOf] takes sandboxes in any state.
func TestHazard05ConfigAbsentAtStopOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		conf := n.path("cni/conf/10-pods.conflist")
		n.stop()
		n.must(os.Remove(conf))
		n.launch()
		n.awaitAnswer()
		if err := n.tryStop(t.Context(), victim.id); err == nil {
			t.Fatal("the pod was stopped without a network")
		}
		before := n.reservations(n.network)
		n.age(n.network)
		same(t, "released", "the sandbox is listed: "+n.sandboxes()[victim.id], nil, n.release(n.network).released)
		same(t, "reservations", "after the pass", before, n.reservations(n.network))
		n.configure(n.network)
		n.awaitReady()
		n.keptThenFreed(victim.id, live)
	})
}

// A reboot takes processes, namespaces and containerd's state, and leaves its
// root and the reservations. The sandboxes are listed, and have no addresses.
//
// Guard: [podsOf] takes sandboxes in any state.
func TestHazard05RebootOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 3)
		n.reboot(false)
		n.start()
		for _, p := range pods {
			n.wantState(p.id, notReady, "the node was rebooted")
			ips, err := n.addresses(t.Context(), p.id)
			n.must(err)
			same(t, "addresses", "the network namespace is gone", nil, ips)
		}
		n.age(n.network)
		same(t, "released", "all sandboxes are listed", nil, n.release(n.network).released)
		same(t, "reservations", "after the pass", holding(pods...), n.reservations(n.network))
		for i, p := range pods {
			n.keptThenFreed(p.id, pods[i+1:]...)
			if i == len(pods)-2 {
				break // a view without any sandbox would be refused (R9)
			}
		}
	})
}

// The power fails before the disk has what host-local wrote: the file of one
// address is there, and empty. No DEL will ever remove it.
//
// Guard: [gc.Options.MinAge] keeps an empty file while it is young.
func TestHazard14PowerLossOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 2)
		n.reboot(false)
		lost := pods[0].ips[0]
		n.must(os.Truncate(filepath.Join(hostlocal.DefaultDataDir, n.network, lost.String()), 0))
		n.start()
		want := joined(holding(pods...), map[netip.Addr]string{lost: ""})
		same(t, "pass", "younger than the minimum age", nil, n.release(n.network).released)
		same(t, "reservations", "after a pass while it is young", want, n.reservations(n.network))
		n.age(n.network)
		same(t, "released", "nobody owns an empty file, nor has its address", map[netip.Addr]string{lost: ""}, n.release(n.network).released)
		delete(want, lost)
		same(t, "reservations", "after the pass", want, n.reservations(n.network))
	})
}

// The node was installed anew, but for /var/lib/cni: no sandbox is known.
//
// Guard: [gc.ErrNoPods] refuses an answer without a sandbox.
func TestHazard20AllSandboxesGoneOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 3)
		n.reboot(true)
		n.start()
		n.importImage()
		n.age(n.network)
		p, err := n.collector(t.Context(), "release", n.network)
		n.must(err)
		if p.status != 1 {
			t.Errorf("a pass without any pod was not refused (R9): %v", p)
		}
		same(t, "reservations", "no pods is an error (R9)", holding(pods...), n.reservations(n.network))
		n.runAgent()
		same(t, "released", "no sandbox has them", holding(pods...), n.release(n.network).released)
		same(t, "reservations", "after the pass", nil, n.reservations(n.network))
	})
}
