// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

// A pod runs, and its status has no address yet. A collector that keeps only addresses in statuses
// releases the address of the pod, and host-local gives it to another pod.
func TestIncident_antrea8239(t *testing.T) {
	const size, running, leaked = 6, 2, 2
	start := func(t *testing.T) (n *node, live []pod, victim pod, statuses string) {
		t.Helper()
		n = newNode(t, current(), func(n *node) { n.pool = size })
		n.runAgent()
		live = n.runSome("live", running)
		n.leak(n.runSome("gone", leaked)...)
		since := time.Now().Add(-20 * time.Minute) // after what leaked an hour ago
		victim = n.run("victim")
		n.must(stamp(n.network, 10*time.Minute, victim.ips...))
		return n, live, victim, n.writePods(since, victim.name, live)
	}
	row := incident{
		Issues: []string{"antrea-io/antrea#8239"},
		Leak: "The opposite of a leak: a collector keeps only the addresses in the statuses of pods. A pod's status has its address " +
			"seconds or minutes after the ADD, and until then the collector calls it leaked.",
		Advice: "antrea#8240 (2.6.3): it also keeps what Antrea itself has attached.",
	}
	t.Run("addresses only", func(t *testing.T) {
		n, _, victim, statuses := start(t)
		released := n.releaseByAddress(statuses)
		for _, ip := range victim.ips {
			if !slices.Contains(released, ip) {
				t.Errorf("the collector released %v, want also %v of the live pod", released, ip)
			}
		}
		late := n.runSome("late", size-running) // they get the leaked and free addresses, and those of the live pod
		got := addressesOf(late)
		for _, ip := range victim.ips {
			if !slices.Contains(got, ip) {
				t.Errorf("new pods got %v, want also %v of the live pod", got, ip)
			}
		}
		row.Alone = fmt.Sprintf("A collector of the test, which keeps only these addresses: it releases %d leaked addresses and the %d of a live pod, and the "+
			"next pods get them.", len(released)-len(victim.ips), len(victim.ips))
	})
	t.Run("a pass", func(t *testing.T) {
		n, live, victim, statuses := start(t)
		status, err := hostlocalGC(t.Context(), "release", "--network", n.network, "-o", "json", "--source", "file:"+statuses)
		n.must(err)
		same(t, "exit status", status.stderr, 0, status.status)
		same(t, "addresses released", "all that leaked", 2*leaked, len(status.released))
		n.wantHeld("after a pass without an address in the status", append(live, victim)...)
		for i := range leaked {
			live = append(live, n.run(fmt.Sprint("late-", i)))
		}
		same(t, "reservations", "each address has one holder", holding(append(live, victim)...), n.reservations(n.network))
		row.Ours = fmt.Sprintf("`hostlocal-gc release` with the same statuses and nothing else: %d of %d leaked addresses released, the live pod keeps its own, "+
			"as a pod whose address is not known may hold what was reserved since it started.", len(status.released), 2*leaked)
		row.Versions = append(n.versions("containerd", "host-local"), "not Antrea", "statuses from a file")
	})
	row.report(t)
}

// releaseByAddress removes the reservation of each address that is in no status. It is not the
// code of a product.
func (n *node) releaseByAddress(statuses string) (released []netip.Addr) {
	n.t.Helper()
	text, err := os.ReadFile(statuses)
	n.must(err)
	var pods []struct{ IPs []netip.Addr }
	n.must(json.Unmarshal(text, &pods))
	var errs []error
	for ip := range n.reservations(n.network) {
		if !slices.ContainsFunc(pods, func(p struct{ IPs []netip.Addr }) bool { return slices.Contains(p.IPs, ip) }) {
			released = append(released, ip)
			errs = append(errs, os.Remove(reservationFile(n.network, ip)))
		}
	}
	n.must(errors.Join(errs...))
	return released
}
