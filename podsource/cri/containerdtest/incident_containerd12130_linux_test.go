// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"fmt"
	"testing"
)

// A plugin of a chain fails in ADD, and again in DEL, which goes through the chain from its end:
// the plugin that has the address is not asked. containerd removes the sandbox and forgets it.
// Each retry of the pod takes one more address.
func TestIncident_containerd12130(t *testing.T) {
	const size, running = 8, 2
	n := newNode(t, current(), func(n *node) { n.chained, n.pool = true, size })
	n.runAgent()
	live := n.runSome("live", running)
	n.tell("chained-ADD", "victim", "fail")
	n.tell("chained-DEL", "victim", "fail")
	for range size - running {
		if !n.retry("victim") {
			t.Fatal("a retry found no address, earlier than one leak for each explains")
		}
	}
	n.untell("chained-ADD", "victim") // the plugin is well again
	n.untell("chained-DEL", "victim")
	same(t, "containers with leaked addresses", "each retry has left one", size-running, len(strangers(n.reservations(n.network), live...)))
	o := n.endOutage(live, "a chain that failed left no entry in its cache")

	incident{
		Issues: []string{"containerd/containerd#12130"},
		Leak: "A plugin further down in a chain fails in ADD and in DEL. containerd keeps no record of the sandbox, so nobody " +
			"ever repeats the DEL: one address (of each family) for each retry of one pod.",
		Advice: "None. containerd#12132, which would keep the sandbox until its DEL succeeds, is open.",
		Alone: fmt.Sprintf("%d retries filled a pool of %d. With the plugin well again no pod starts, and none after a restart of containerd. "+
			"libcni's GC succeeds and frees %d: its cache has no entry of an ADD that failed.", size-running, size, o.freed),
		Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, "+
			"%d pods start, %d live pods keep theirs.", passWithRuntime, o.released, o.leaked, o.started, running),
		Versions: n.versions("containerd", "containerd:github.com/containerd/go-cni", "containerd:github.com/containernetworking/cni", "host-local"),
	}.tell(t)
}
