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
// addresses by then. The DEL that follows fails, and containerd forgets the sandbox. Where containerd
// does as the issue was closed with, it lists the sandbox, and a later stop does the DEL.
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
			len(strangers(n.reservations(n.network), live...)))
		o := n.endOutage(live, "an ADD that was ended left no entry in its cache")
		row = incident{
			Issues: []string{"containerd/containerd#5768", "containerd/go-cni#60"},
			Leak: "An ADD is slower than kubelet's deadline. The deadline ends the plugin after its IPAM, the DEL fails, too, and containerd " +
				"forgets the sandbox: one address (of each family) for each retry.",
			Advice: "An upgrade: the first is closed with containerd#5904 (1.7, and containerd#7456 for 1.6), which has the sandbox listed, so that kubelet " +
				"repeats the DEL. containerd 2 forgets it again (see containerd#12130). go-cni#60 is open.",
			Alone: fmt.Sprintf("containerd 2: %d calls filled a pool of %d. With the plugin quick again no pod starts, and none after a restart of containerd. "+
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
		for _, id := range strangers(n.reservations(n.network), live...) {
			n.wantState(id, notReady, "its DEL is to be repeated")
			n.remove(id)
		}
		same(t, "reservations", "the stop did the DEL", holding(live...), n.reservations(n.network))
		row.Alone += " containerd 1.6 lists the sandbox, and a later stop frees its addresses."
		row.Versions = append(row.Versions, n.debianVersion())
	})
	row.tell(t)
}

// timeOut runs a pod so many times with an ADD that is slower than the call's deadline and a DEL that
// fails. Then the plugin is quick again.
func (n *node) timeOut(name string, times int) {
	n.t.Helper()
	n.tell("DEL", name, "fail")
	for i := range times {
		c := n.runHeld(name)
		c.giveUp()
		<-c.done
		n.await("containerd to be done with the pod", func(context.Context) error {
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
