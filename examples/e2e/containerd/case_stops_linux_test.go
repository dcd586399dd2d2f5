// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// keptThenFreed checks that an old reservation is kept while its sandbox is listed, and gone
// after the sandbox was removed.
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
		n.t.Fatalf("sandbox %s is in state %q, want %q: %s", id, got, want, reason)
	}
}

const notReady = "SANDBOX_NOTREADY"

// The runtime is killed after the IPAM of an ADD. It has recorded the sandbox by then, and lists
// it after its restart.
//
// Guard: [podsOf] converts sandboxes in any state.
func TestHazard05KilledDuringADDOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		starting := n.runHeld("victim")
		n.kill()
		n.resume()
		<-starting.done
		ids := otherContainers(n.reservations(n.network), live)
		if starting.err == nil || len(ids) != 1 {
			t.Fatalf("the pod must fail and leave the reservations of one container: %v, %v", starting.err, ids)
		}
		n.start()
		n.wantState(ids[0], notReady, "it was recorded before the ADD")
		n.keptThenFreed(ids[0], live)
	})
}

// The binary of a plugin is missing when a pod is stopped, as during an update.
//
// Guard: [podsOf] converts sandboxes in any state.
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
// Guard: [podsOf] converts sandboxes in any state.
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

// A reboot ends processes and network namespaces, and removes containerd's state. Its root and
// the reservations stay. The sandboxes are listed, without addresses.
//
// Guard: [podsOf] converts sandboxes in any state.
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
				break // a list without any sandbox is an error (R9)
			}
		}
	})
}

// The power fails before the disk has the data of one reservation: the file exists, and is
// empty. No DEL will ever remove it.
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
		same(t, "released", "an empty file has no owner, and no pod has its address", map[netip.Addr]string{lost: ""}, n.release(n.network).released)
		delete(want, lost)
		same(t, "reservations", "after the pass", want, n.reservations(n.network))
	})
}

// The node was installed again and kept /var/lib/cni. The runtime knows no sandbox.
//
// Guard: [gc.ErrNoPods] is the error of an answer without a sandbox.
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
			t.Errorf("a pass without any pod succeeded (R9): %v", p)
		}
		same(t, "reservations", "no pods is an error (R9)", holding(pods...), n.reservations(n.network))
		n.runAgent()
		same(t, "released", "no sandbox has them", holding(pods...), n.release(n.network).released)
		same(t, "reservations", "after the pass", nil, n.reservations(n.network))
	})
}
