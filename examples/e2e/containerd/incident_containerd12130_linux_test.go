// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"testing"
)

// A plugin of a chain fails in ADD, and again in DEL, which calls the plugins in reverse order: the
// plugin that has the address is not called. containerd removes its record of the sandbox. Each
// retry of the pod leaks one more address.
func TestIncident_containerd12130(t *testing.T) {
	const size, running = 8, 2
	n := newNode(t, current(), func(n *node) { n.chained, n.pool = true, size })
	n.runAgent()
	live := n.runSome("live", running)
	n.tell("chained-ADD", "victim", "fail")
	n.tell("chained-DEL", "victim", "fail")
	for range size - running {
		if !n.retry("victim") {
			t.Fatal("a retry found no address, before the leaks of the retries filled the pool")
		}
	}
	n.untell("chained-ADD", "victim") // the plugin works again
	n.untell("chained-DEL", "victim")
	same(t, "containers with leaked addresses", "each retry has left one", size-running, len(otherContainers(n.reservations(n.network), live...)))
	o := n.endOutage(live, "its cache has no entry of a chain that failed")

	incident{
		Issues: []string{"containerd/containerd#12130"},
		Leak: "A later plugin of a chain fails in ADD and in DEL. containerd keeps no record of the sandbox, so the DEL is " +
			"never repeated: one address (of each family) for each retry of one pod.",
		Advice: "None. containerd#12132, which would keep the sandbox until its DEL succeeds, is open.",
		Alone: fmt.Sprintf("%d retries filled a pool of %d. After the plugin works again no pod starts, and none after a restart of containerd. "+
			"libcni's GC succeeds and frees %d: its cache has no entry of an ADD that failed.", size-running, size, o.freed),
		Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, "+
			"%d pods start, %d live pods keep theirs.", passWithRuntime, o.released, o.leaked, o.started, running),
		Versions: n.versions("containerd", "containerd:github.com/containerd/go-cni", "containerd:github.com/containernetworking/cni", "host-local"),
	}.report(t)
}
