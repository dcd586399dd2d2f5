// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"strings"
	"testing"
)

// Nomad makes the network of an allocation with the allocation's ID. After a reboot it does so again,
// in a new namespace and without a DEL, while host-local has an address for that ID. Nomad tries three
// times. In this test a small client makes Nomad's calls of go-cni.
func TestIncident_nomad11272(t *testing.T) {
	const attempts = 3
	const twice = "duplicate allocation is not allowed"
	allocations := []string{"5f1bb0a4-2f0b-5d5a-b1a4-8c1f5e1e0b01", "5f1bb0a4-2f0b-5d5a-b1a4-8c1f5e1e0b02"}
	rebooted := func(t *testing.T) (n *node, dead []pod) {
		t.Helper()
		n = newNode(t, current())
		n.forClients()
		for _, id := range allocations {
			dead = append(dead, n.runByGocni(id).pod)
		}
		n.reboot(false)
		return n, dead
	}
	again := func(n *node) {
		n.t.Helper()
		var live []pod
		for _, id := range allocations {
			live = append(live, n.runByGocni(id).pod)
		}
		same(n.t, "reservations", "one of each family for each allocation", holding(live...), n.reservations(n.network))
		n.pass()
		same(n.t, "reservations after a pass", "the allocations live", holding(live...), n.reservations(n.network))
	}
	row := incident{
		Issues: []string{"hashicorp/nomad#11272"},
		Leak: "After a reboot Nomad makes the network of an allocation again, under its ID and without a DEL. host-local still has an " +
			"address for that ID.",
		Advice: "nomad#24650 (1.9.4): Nomad's own bridge network has its reservations on a tmpfs. Its comments describe an upgrade under running " +
			"allocations: the new directory was empty, and host-local handed out their addresses.",
	}
	t.Run("alone", func(t *testing.T) {
		n, dead := rebooted(t)
		freed := n.collectGarbage()
		for _, id := range allocations {
			for i := range attempts {
				_, err := n.tryRunByGocni(id) // from the second try on bridge finds its interface in the namespace
				if err == nil || i == 0 && !strings.Contains(err.Error(), twice) {
					t.Fatalf("an ADD of %s must fail with %q: %v", id, twice, err)
				}
			}
		}
		same(t, "reservations", "no DEL was called", holding(dead...), n.reservations(n.network))
		row.Alone = fmt.Sprintf("%d allocations, %d ADDs of each, as Nomad tries: all fail, the first with `%s`. libcni's GC would free %d of %d addresses. Nomad does not call it.",
			len(allocations), attempts, twice, len(freed), 2*len(allocations))
		row.Versions = append(n.versions("gocni:github.com/containerd/go-cni", "gocni:github.com/containernetworking/cni", "host-local"),
			"not Nomad: its calls, without its plugins `firewall` and `portmap`")
	})
	t.Run("a pass", func(t *testing.T) {
		n, dead := rebooted(t)
		p := n.pass()
		same(t, "released", "their namespaces are gone", holding(dead...), p.released)
		again(n)
		row.Ours = fmt.Sprintf("%s, before Nomad starts: %d of %d leaked addresses released, and the first ADD of each of %d allocations succeeds. ",
			passWithoutRuntime, len(p.released), 2*len(allocations), len(allocations))
	})
	t.Run("the IPAM plugin", func(t *testing.T) {
		n, _ := rebooted(t)
		n.start()
		n.runAgent() // process 1 is not that of a machine, so its containers show that this is a node
		n.installInPlace()
		again(n)
		row.Ours += fmt.Sprintf("With `examples/ipam` in host-local's place the first ADD of all %d succeeds without a pass.", len(allocations))
	})
	row.report(t)
}
