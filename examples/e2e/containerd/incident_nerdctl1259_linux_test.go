// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Containers of nerdctl that have ended keep their addresses until they are removed. After a power
// loss the start of a container fails, since an address is reserved for it. The IPAM plugin in
// host-local's place runs a pass when an ADD fails.
func TestIncident_nerdctl1259(t *testing.T) {
	const size, running = 4, 1
	row := incident{
		Issues: []string{"containerd/nerdctl#1259", "containerd/nerdctl#3355"},
		Leak: "A container that ends keeps its addresses until `nerdctl rm`. After a power loss the DEL of a running container is never called, " +
			"and its next start requests an address that is reserved for itself.",
		Advice: "`nerdctl rm` of each container that has ended, or `nerdctl run --rm` from the start (nerdctl#1259).",
	}
	refused := func(t *testing.T, what, said string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Fatalf("%s, with host-local alone: %v, want an error that says %q", what, err, said)
		}
	}
	t.Run("containers end", func(t *testing.T) {
		const none = "no IP addresses available in range set"
		n := newNode(t, current(), func(n *node) { n.pool = size })
		n.forClients()
		live := []pod{n.runByNerdctl("live").pod}
		var ended []pod
		for i := range size - running {
			c := n.runByNerdctl(fmt.Sprint("ended-", i))
			_, err := n.nerdctl("kill", c.name)
			n.must(err)
			ended = append(ended, c.pod)
		}
		_, err := n.tryRunByNerdctl("refused")
		refused(t, "nerdctl run", none, err)
		n.restart()
		_, err = n.tryRunByNerdctl("refused-again")
		refused(t, "nerdctl run after a restart of containerd", none, err)
		same(t, "reservations", "no DEL was called", holding(append(ended, live...)...), n.reservations(n.network))
		freed := n.collectGarbage(live...)

		n.age(n.network)
		n.must(stampRecords(time.Hour))
		n.installInPlace()
		for i := range size - running {
			live = append(live, n.runByNerdctl(fmt.Sprint("new-", i)).pod)
		}
		same(t, "reservations", "those of ended containers were released when an ADD needed them", holding(live...), n.reservations(n.network))
		row.Alone = fmt.Sprintf("%d ended containers and %d live one fill a pool of %d: `nerdctl run` fails, also after a restart of containerd. libcni's GC would free "+
			"%d of %d (one of each family). Neither nerdctl nor containerd calls it.", size-running, running, size, len(freed), 2*(size-running))
		row.Ours = fmt.Sprintf("`examples/ipam` in host-local's place: %d new containers run on the same pool, the live one keeps its addresses.", size-running)
		row.Versions = n.versions("nerdctl", "nerdctl:github.com/containernetworking/cni", "containerd", "host-local")
	})
	t.Run("power loss", func(t *testing.T) {
		const twice = "duplicate allocation is not allowed"
		n := newNode(t, current())
		n.forClients()
		var before []pod
		for _, name := range []string{"alone", "healed"} {
			before = append(before, n.runByNerdctl(name).pod)
		}
		n.reboot(false)
		n.start()
		_, err := n.nerdctl("start", "alone")
		refused(t, "nerdctl start", twice, err)
		same(t, "reservations", "the failed start called DEL for its own container", holding(before[1]), n.reservations(n.network))
		n.removeBridge()

		n.installInPlace()
		if _, err := n.nerdctl("start", "healed"); err != nil {
			t.Fatalf("nerdctl start, with the IPAM plugin: %v", err)
		}
		same(t, "reservations", "one of each family for the container that runs", holding(n.holder("healed", before[1].id)), n.reservations(n.network))
		row.Alone += fmt.Sprintf(" After a power loss the first `nerdctl start` of a container fails (`%s`).", twice)
		row.Ours += " After a power loss the first `nerdctl start` of a container succeeds."
	})
	row.report(t)
}
