// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A pool is full of leaks, and an administrator follows the advice and empties the network's
// directory while pods run. host-local gives their addresses to other pods. A pass releases the leaks
// only.
func TestIncident_k3s5885(t *testing.T) {
	const size, running = 6, 2
	fill := func(t *testing.T) (n *node, live []pod) {
		t.Helper()
		n = newNode(t, current(), func(n *node) { n.pool = size })
		n.runAgent()
		live = n.runSome("live", running)
		n.leak(n.runSome("gone", size-running)...)
		n.wantFull("with the pool full of leaks")
		return n, live
	}
	row := incident{
		Issues: []string{"k3s-io/k3s#5885"},
		Leak:   "The directory of a pool that is full of leaks is emptied while pods run. host-local hands out the addresses of live pods.",
		Advice: "`k3s-killall.sh`, which ends all pods of the node, and then `rm -rf /var/lib/cni/networks/cbr0/`. multus-cni#54 advises the latter only.",
	}
	t.Run("the directory is emptied", func(t *testing.T) {
		n, live := fill(t)
		files, err := filepath.Glob(filepath.Join(hostlocal.DefaultDataDir, n.network, "*"))
		n.must(err)
		for _, file := range files {
			n.must(os.Remove(file))
		}
		n.wantFinding("UNRESERVED", fmt.Sprintf("%d addresses of live pods", 2*running))
		same(t, "released", "nothing is reserved", nil, n.pass("--source", "cri:"+n.endpoint()).released)
		late := n.runSome("late", running)
		same(t, "addresses of new pods", "host-local starts with the first address", addressesOf(live), addressesOf(late))
		n.wantFinding("DUPLICATE", "")
		row.Alone = fmt.Sprintf("%d pods that start after the `rm` get the %d addresses of %d live pods.", running, 2*running, running)
		row.Ours = "After the `rm` `hostlocal-gc check` says `UNRESERVED` at once, and after the next pods `DUPLICATE`. It can't repair either."
	})
	t.Run("a pass", func(t *testing.T) {
		n, live := fill(t)
		p := n.pass("--source", "cri:"+n.endpoint())
		same(t, "addresses released", "all that leaked", 2*(size-running), len(p.released))
		late := n.runSome("late", size-running)
		n.wantHeld("beside pods that start", append(live, late...)...)
		same(t, "reservations", "each address has one holder", holding(append(live, late...)...), n.reservations(n.network))
		row.Ours = fmt.Sprintf("Instead of the `rm`, %s: %d of %d leaked addresses released, %d pods start, %d live pods keep theirs. ",
			passWithRuntime, len(p.released), 2*(size-running), size-running, running) + row.Ours
		row.Versions = n.versions("containerd", "containerd:github.com/containernetworking/cni", "host-local")
	})
	row.report(t)
}

// wantFinding checks the first finding of `hostlocal-gc check`.
func (n *node) wantFinding(word, more string) {
	n.t.Helper()
	status, out, stderr, err := callHostlocalGC(n.t.Context(), "check", "--network", n.network, "--cni-dir", n.path("cni/conf"),
		"--source", "cri:"+n.endpoint(), kernel)
	n.must(err)
	first, _, _ := strings.Cut(string(out), "\n")
	if status != 3 || !strings.HasPrefix(first, word+": ") || !strings.Contains(first, more) {
		n.t.Errorf("hostlocal-gc check: exit status %d, %s%s, want 3 with %q and %q in the first line", status, out, stderr, word, more)
	}
}
