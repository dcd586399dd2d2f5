// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// installInPlace installs the IPAM plugin of examples/ipam in place of host-local, as described
// in its README.
func (n *node) installInPlace() {
	n.t.Helper()
	hostLocal := n.path("cni/bin/host-local")
	n.must(os.Rename(hostLocal, hostLocal+".real"))
	n.must(os.Symlink(filepath.Join(os.Getenv(binEnv), "ipam"), hostLocal))
}

// refusedByHostLocal checks that a command failed with an error of host-local, and removes the
// bridge. After a failed ADD a bridge without ports has no MAC address, and every later ADD
// fails ("could not set bridge's mac").
func (n *node) refusedByHostLocal(what string, err error, said string) {
	n.t.Helper()
	if err == nil || !strings.Contains(err.Error(), said) {
		n.t.Errorf("%s, with host-local alone: %v, want an error that says %q", what, err, said)
	}
	n.must(removeBridges())
}

// After a power loss nerdctl's containers have their old IDs, whose reservations still exist.
// With host-local alone the first start of each fails, and its DEL makes a second start
// possible. With the IPAM plugin in its place the first start succeeds.
func TestNerdctlStartsAfterPowerLossOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		asked, askedAlone := netip.MustParseAddr("10.88.0.77"), netip.MustParseAddr("10.88.0.177")
		var before []container
		for _, flags := range [][]string{{"dynamic"}, {"asking", "--ip", asked.String()}, {"dynamic-alone"}, {"asking-alone", "--ip", askedAlone.String()}} {
			c, err := n.tryRunByNerdctl(flags[0], flags[1:]...)
			n.must(err)
			before = append(before, c)
		}
		same(t, "first address", "requested with --ip", asked, before[1].ips[0])
		n.reboot(false)
		n.start()
		for name, said := range map[string]string{
			"dynamic-alone": "duplicate allocation is not allowed",
			"asking-alone":  "requested IP address 10.88.0.177 is not available",
		} {
			_, err := n.nerdctl("start", name)
			n.refusedByHostLocal("nerdctl start "+name, err, said)
		}
		same(t, "reservations", "the DEL of each failed start removed its reservations", holding(podsOf(before[:2])...), n.reservations(n.network))

		n.installInPlace()
		for _, name := range []string{"dynamic", "asking", "dynamic-alone", "asking-alone"} {
			if _, err := n.nerdctl("start", name); err != nil {
				t.Errorf("nerdctl start %s, with the IPAM plugin: %v", name, err)
			}
		}
		var after []pod
		for _, c := range before {
			after = append(after, n.holder(c.name, c.id))
		}
		same(t, "addresses", "requested with --ip again", before[1].ips[:1], after[1].ips[:1])
		same(t, "reservations", "the old reservations are released", holding(after...), n.reservations(n.network))
		if !t.Failed() {
			fmt.Printf("nerdctl on %s, after a power loss: each first start fails with host-local alone, and succeeds with hostlocal-gc-ipam in its place, also with --ip\n", n.name)
		}
	})
}

// After a power loss the pool is full of reservations of containers that are not started again.
// With host-local alone the next container gets no address, and with the IPAM plugin it gets
// one. Live containers keep their addresses.
func TestNerdctlRunsOnALeakedPoolOnContainerd(t *testing.T) {
	for _, f := range []flavour{current(), debian()} {
		t.Run(f.name, func(t *testing.T) {
			const size = 3
			n := newNode(t, f, func(n *node) { n.pool = size })
			n.forClients()
			for i := range size {
				n.runByNerdctl(fmt.Sprint("dead-", i))
			}
			n.reboot(false)
			n.start()
			n.age(n.network)
			n.must(stampRecords(time.Hour))
			full := n.reservations(n.network)
			_, err := n.tryRunByNerdctl("refused")
			n.refusedByHostLocal("nerdctl run", err, "no IP addresses available in range set")
			same(t, "reservations", "nothing was released", full, n.reservations(n.network))

			n.installInPlace()
			var live []pod
			for i := range size {
				live = append(live, n.runByNerdctl(fmt.Sprint("live-", i)).pod)
			}
			same(t, "reservations", "leaks were released when an ADD needed them", holding(live...), n.reservations(n.network))
			n.age(n.network)
			if _, err := n.tryRunByNerdctl("one-too-many"); err == nil || !strings.Contains(err.Error(), "no IP addresses available in range set") {
				t.Errorf("nerdctl run on a pool without a free address: %v", err)
			}
			same(t, "reservations", "all containers are live", holding(live...), n.reservations(n.network))
		})
	}
}
