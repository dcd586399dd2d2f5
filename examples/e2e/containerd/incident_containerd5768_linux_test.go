// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
)

// The ADD is slow. kubelet's deadline ends the call and the plugin, after its IPAM. The DEL fails,
// too, and containerd removes its record of the sandbox. With the fix of the issue containerd 1.6
// lists the sandbox, and a later stop calls DEL.
func TestIncident_containerd5768(t *testing.T) {
	const size, running = 5, 2
	needDebian(t)
	var row incident
	t.Run("containerd 2", func(t *testing.T) {
		n := newNode(t, current(), func(n *node) { n.pool = size })
		n.runAgent()
		live := n.runSome("live", running)
		n.timeOut("victim", size-running)
		same(t, "containers with leaked addresses", "each call that timed out has left one", size-running,
			len(otherContainers(n.reservations(n.network), live...)))
		o := n.endOutage(live, "its cache has no entry of an ADD that was ended")
		row = incident{
			Issues: []string{"containerd/containerd#5768", "containerd/go-cni#60"},
			Leak: "An ADD is slower than kubelet's deadline. The deadline ends the plugin after its IPAM, the DEL fails, too, and containerd " +
				"forgets the sandbox: one address (of each family) for each retry.",
			Advice: "An upgrade: the first is closed with containerd#5904 (1.7, and containerd#7456 for 1.6), which keeps the sandbox in the list, so that kubelet " +
				"repeats the DEL. containerd 2 forgets it again (see containerd#12130). go-cni#60 is open.",
			Alone: fmt.Sprintf("containerd 2: %d calls filled a pool of %d. After the plugin is fast again no pod starts, and none after a restart of containerd. "+
				"libcni's GC succeeds and frees %d.", size-running, size, o.freed),
			Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, %d pods start, %d live pods keep theirs.",
				passWithRuntime, o.released, o.leaked, o.started, running),
			Versions: n.versions("containerd", "containerd:github.com/containerd/go-cni", "containerd:github.com/containernetworking/cni", "host-local"),
		}
	})
	t.Run("containerd 1.6", func(t *testing.T) {
		n := newNode(t, debian(), func(n *node) { n.pool = size })
		n.runAgent()
		live := n.runSome("live", running)
		n.timeOut("victim", 1)
		for _, id := range otherContainers(n.reservations(n.network), live...) {
			n.wantState(id, notReady, "its DEL must be repeated")
			n.remove(id)
		}
		same(t, "reservations", "the stop called DEL", holding(live...), n.reservations(n.network))
		row.Alone += " containerd 1.6 lists the sandbox, and a later stop frees its addresses."
		row.Versions = append(row.Versions, n.debianVersion())
	})
	row.report(t)
}

// timeOut runs a pod several times, with an ADD that is slower than the call's deadline, and a DEL
// that fails. Then the plugin is fast again.
func (n *node) timeOut(name string, times int) {
	n.t.Helper()
	n.tell("DEL", name, "fail")
	for i := range times {
		c := n.runHeld(name)
		c.cancel()
		<-c.done
		n.await("containerd to end the call", func(context.Context) error {
			log, err := os.ReadFile(n.path("containerd.log"))
			if ended := bytes.Count(log, []byte(`level=error msg="RunPodSandbox for `)); err == nil && ended <= i {
				err = fmt.Errorf("it has ended %d calls", ended)
			}
			return err
		})
	}
	n.untell("ADD", name)
	n.untell("DEL", name)
}
