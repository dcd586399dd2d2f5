// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
)

// The ADD is slow. kubelet's deadline ends the call, and with it the plugin, which has its
// addresses by then. The DEL that follows fails, and containerd forgets the sandbox.
func TestIncident_containerd5768(t *testing.T) {
	const size, running = 5, 2
	n := newNode(t, current(), func(n *node) { n.pool = size })
	n.runAgent()
	live := n.runSome("live", running)
	n.tell("DEL", "victim", "fail")
	for i := range size - running {
		c := n.runHeld("victim")
		c.giveUp()
		<-c.done
		n.await("containerd to be done with the pod", func(context.Context) error {
			log, err := os.ReadFile(n.path("containerd.log"))
			if ended := bytes.Count(log, []byte(`level=error msg="RunPodSandbox for name:\"victim\"`)); err == nil && ended <= i {
				err = fmt.Errorf("it has ended %d calls", ended)
			}
			return err
		})
	}
	n.untell("ADD", "victim") // the plugin is quick again
	n.untell("DEL", "victim")
	leaked := strangers(n.reservations(n.network), live...)
	same(t, "containers with leaked addresses", "each call that timed out has left one", size-running, len(leaked))
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
	same(t, "freed by libcni's GC", "an ADD that was ended left no entry in its cache", nil, freed)

	p := n.pass("--source", "cri:"+n.endpoint())
	same(t, "addresses released", "one of each family for each call", 2*(size-running), len(p.released))
	n.wantHeld("after the pass", live...)
	for range size - running {
		live = append(live, n.run(fmt.Sprint("web-", len(live))))
	}
	n.wantHeld("on a pool that is full again", live...)

	incident{
		Issues: []string{"containerd/containerd#5768", "containerd/go-cni#60"},
		Leak: "An ADD is slower than kubelet's deadline. The deadline ends the plugin after its IPAM, the DEL fails, too, and containerd " +
			"forgets the sandbox: one address (of each family) for each retry.",
		Advice: "None. containerd#5904, which would make the sandbox before its network, is open.",
		Alone: fmt.Sprintf("%d calls filled a pool of %d. With the plugin quick again no pod starts, and none after a restart of containerd. "+
			"libcni's GC succeeds and frees %d.", size-running, size, len(freed)),
		Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, %d pods start, %d live pods keep theirs.",
			passWithRuntime, len(p.released), 2*(size-running), size-running, running),
		Versions: n.versions("containerd", "containerd:github.com/containerd/go-cni", "containerd:github.com/containernetworking/cni", "host-local"),
	}.tell(t)
}
