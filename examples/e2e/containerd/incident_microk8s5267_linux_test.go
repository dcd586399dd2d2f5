// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"testing"
)

// The power fails, and containerd's records are lost. No DEL is called for its sandboxes, and all
// their addresses stay reserved.
func TestIncident_microk8s5267(t *testing.T) {
	const size = 6
	n := newNode(t, current(), func(n *node) { n.pool = size })
	dead := n.runSome("before", size)
	n.reboot(true)
	n.start()
	n.importImage()
	n.runAgent()
	same(t, "reservations", "the disk has them", holding(dead...), n.reservations(n.network))

	n.wantFull("after the power loss")
	n.restart()
	n.wantFull("after a restart of containerd")
	freed := n.collectGarbage()
	same(t, "reservations", "containerd does not call libcni's GC", holding(dead...), n.reservations(n.network))

	n.removeBridge()
	p := n.pass("--source", "cri:"+n.endpoint())
	same(t, "released", "no sandbox, process, namespace or entry has them", holding(dead...), p.released)
	live := n.runSome("after", size)
	same(t, "addresses released by the next pass", "live pods have them", 0, len(n.pass("--source", "cri:"+n.endpoint()).released))
	n.wantHeld("after the next pass", live...)

	incident{
		Issues: []string{"canonical/microk8s#5267", "containernetworking/plugins#697"},
		Leak: "The power fails, and containerd's record of its sandboxes is lost with it. host-local's reservations are on the disk, " +
			"and no DEL is called for them. (The first issue is about `microk8s stop`, too, which is not reproduced.)",
		Advice: "Empty `/var/lib/cni/networks/NAME` after each reboot (plugins#252), by systemd-tmpfiles (plugins#697), or keep it on a tmpfs (plugins#728).",
		Alone: fmt.Sprintf("All %d addresses of a pool of %d stay reserved. No pod starts, and none after a restart of containerd. "+
			"libcni's GC would free %d of %d (one of each family), as its cache is complete. containerd does not call it.", size, size, len(freed), 2*size),
		Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, %d pods start and keep theirs in the next pass. %s",
			passWithRuntime, len(p.released), 2*size, size, bridgeWithoutMAC),
		Versions: n.versions("containerd", "containerd:github.com/containernetworking/cni", "host-local"),
	}.report(t)
}
