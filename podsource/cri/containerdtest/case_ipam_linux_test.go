// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// installInPlace puts the IPAM plugin of examples/ipam where host-local was, as its
// README says.
func (n *node) installInPlace() {
	n.t.Helper()
	hostLocal := n.path("cni/bin/host-local")
	n.must(os.Rename(hostLocal, hostLocal+".real"))
	n.must(os.Symlink(filepath.Join(os.Getenv(binEnv), "ipam"), hostLocal))
}

// refusedByHostLocal checks that a command failed, and what host-local said. A bridge
// that had its first port taken away, as a failed ADD does, has no MAC address, and with
// it no later ADD would succeed ("could not set bridge's mac"): another ADD finds none.
func (n *node) refusedByHostLocal(what string, err error, said string) {
	n.t.Helper()
	if err == nil || !strings.Contains(err.Error(), said) {
		n.t.Errorf("%s, with host-local alone: %v, want an error that says %q", what, err, said)
	}
	n.must(removeBridges())
}

// After a power loss nerdctl's containers have the ID that they had, and the addresses
// that nobody released. With host-local alone the first start of each fails, and its DEL
// makes the second possible, if anybody tries. With the IPAM plugin in its place the
// first start succeeds.
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
		same(t, "first address", "it was asked for", asked, before[1].ips[0])
		n.reboot(false)
		n.start()
		for name, said := range map[string]string{
			"dynamic-alone": "duplicate allocation is not allowed",
			"asking-alone":  "requested IP address 10.88.0.177 is not available",
		} {
			_, err := n.nerdctl("start", name)
			n.refusedByHostLocal("nerdctl start "+name, err, said)
		}
		same(t, "reservations", "what the failed starts left is deleted by their own DEL", holding(podsOf(before[:2])...), n.reservations(n.network))

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
		same(t, "addresses", "it asks for the one that it had", before[1].ips[:1], after[1].ips[:1])
		same(t, "reservations", "those of before are released", holding(after...), n.reservations(n.network))
		if !t.Failed() {
			n.figure(fmt.Sprintf("nerdctl on %s, after a power loss: each first start fails with host-local alone, and succeeds with hostlocal-gc-ipam in its place, also with --ip", n.name))
		}
	})
}

// A power loss leaves a pool full of what containers held that nobody starts again. The
// next container finds no address with host-local alone, and one with the IPAM plugin.
// Those that live keep theirs.
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
			same(t, "reservations", "nobody released any", full, n.reservations(n.network))

			n.installInPlace()
			var live []pod
			for i := range size {
				live = append(live, n.runByNerdctl(fmt.Sprint("live-", i)).pod)
			}
			same(t, "reservations", "what leaked was released when it was needed", holding(live...), n.reservations(n.network))
			n.age(n.network)
			if _, err := n.tryRunByNerdctl("one-too-many"); err == nil || !strings.Contains(err.Error(), "no IP addresses available in range set") {
				t.Errorf("nerdctl run, on a pool whose addresses are all in use: %v", err)
			}
			same(t, "reservations", "all their containers live", holding(live...), n.reservations(n.network))
		})
	}
}
