// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"testing"
)

// Pods of Kubernetes and containers of nerdctl share a network. The valid attachments of one runtime
// do not include those of the other, so a GC of either releases addresses of live containers.
func TestIncident_cni1086(t *testing.T) {
	const size, each = 8, 2
	n := newNode(t, current(), func(n *node) { n.pool = size })
	n.forClients()
	n.runAgent()
	pods := n.runSome("live", each)
	var containers, ended []pod
	for i := range each {
		containers = append(containers, n.runByNerdctl(fmt.Sprint("alive-", i)).pod)
		c := n.runByNerdctl(fmt.Sprint("ended-", i))
		_, err := n.nerdctl("kill", c.name)
		n.must(err)
		ended = append(ended, c.pod)
	}
	gone := n.runSome("gone", each)
	n.leak(gone...)
	live, dead := append(pods, containers...), append(gone, ended...)
	n.wantFull("with the pool full of leaks")
	freed := n.collectGarbage(pods...)
	same(t, "freed by libcni's GC with the pods as valid", "the containers are not among them",
		verdicts("", addressesOf(append(dead, containers...))...), verdicts("", freed...))

	alone := n.release(n.network, "--dry-run")
	same(t, "plan with the runtime alone", "it does not list the containers", joined(verdicts("in-use", addressesOf(pods)...),
		verdicts("leaked", addressesOf(gone)...), verdicts("foreign", addressesOf(append(ended, containers...))...)), alone.verdicts)
	p := n.pass("--source", "cri:"+n.endpoint())
	same(t, "released", "neither runtime runs their containers", holding(dead...), p.released)
	for i := range len(dead) {
		live = append(live, n.run(fmt.Sprint("web-", i)))
	}
	same(t, "reservations", "of both runtimes", holding(live...), n.reservations(n.network))

	incident{
		Issues: []string{"containernetworking/cni#1086"},
		Leak: "Two runtimes share a network. Each knows its own attachments only, so its GC request calls those of the other one invalid. " +
			"(Here pods of the CRI and containers of nerdctl.)",
		Advice: "`disableGC` in the configuration of such a network: nothing collects it then.",
		Alone: fmt.Sprintf("libcni's GC with the %d live pods as valid frees %d addresses: %d that leaked, and all %d of the %d live containers.",
			each, len(freed), 2*len(dead), 2*each, each),
		Ours: fmt.Sprintf("%s: %d of %d leaked addresses of both runtimes released, %d live pods and %d live containers keep theirs, %d pods start. "+
			"With the runtime alone as a source those of the containers are kept as `foreign`.", passWithRuntime, len(p.released), 2*len(dead), each, each, len(dead)),
		Versions: n.versions("containerd", "containerd:github.com/containernetworking/cni", "nerdctl", "host-local"),
	}.report(t)
}
