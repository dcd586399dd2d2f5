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
	leaked := strangers(n.reservations(n.network), live...)
	same(t, "containers with leaked addresses", "each retry has left one", size-running, len(leaked))
	for _, id := range leaked {
		if state, ok := n.sandboxes()[id]; ok {
			t.Errorf("containerd lists sandbox %s as %s, and was to have forgotten it", id, state)
		}
	}

	n.wantFull("with the pool full of leaks")
	n.restart()
	n.wantFull("after a restart of containerd")
	freed, err := n.collectGarbage(live...)
	n.must(err)
	same(t, "freed by libcni's GC", "a chain that failed left no entry in its cache", nil, freed)

	p := n.pass("--source", "cri:"+n.endpoint())
	same(t, "addresses released", "one of each family for each retry: "+p.String(), 2*(size-running), len(p.released))
	n.wantHeld("after the pass", live...)
	for range size - running {
		live = append(live, n.run(fmt.Sprint("web-", len(live))))
	}
	n.wantHeld("on a pool that is full again", live...)

	incident{
		Issues: []string{"containerd/containerd#12130"},
		Leak: "A plugin further down in a chain fails in ADD and in DEL. containerd keeps no record of the sandbox, so nobody " +
			"ever repeats the DEL: one address (of each family) for each retry of one pod.",
		Advice: "None. containerd#12132, which would keep the sandbox until its DEL succeeds, is open.",
		Alone: fmt.Sprintf("%d retries filled a pool of %d. With the plugin well again no pod starts, and none after a restart of containerd. "+
			"libcni's GC succeeds and frees %d: its cache has no entry of an ADD that failed.", size-running, size, len(freed)),
		Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, "+
			"%d pods start, %d live pods keep theirs.", passWithRuntime, len(p.released), 2*(size-running), size-running, running),
		Versions: n.versions("containerd", "containerd:github.com/containerd/go-cni", "containerd:github.com/containernetworking/cni", "host-local"),
	}.tell(t)
}
