// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runEach runs containers by every client, and one more in gVisor where it can.
func (n *node) runEach(name string, count int) []container {
	n.t.Helper()
	return n.runEachIn(name, count, true)
}

// runEachIn is the same with gVisor, or without.
func (n *node) runEachIn(name string, count int, gVisor bool) (all []container) {
	n.t.Helper()
	for _, c := range n.clients() {
		var names []string
		for i := range count {
			names = append(names, fmt.Sprintf("%s-%s-%d", name, c.name, i))
		}
		if c.oci && gVisor {
			names = append(names, fmt.Sprintf("%s-%s-%s", gvisorPods, name, c.name))
		}
		for _, name := range names {
			one := c.run(n, name)
			c.proves(n, one.pod)
			all = append(all, one)
		}
	}
	return all
}

func podsOf(containers []container) (pods []pod) {
	for _, c := range containers {
		pods = append(pods, c.pod)
	}
	return pods
}

// apartByGVisor sets pods in gVisor apart.
func apartByGVisor(pods []pod) (others, inGVisor []pod) {
	for _, p := range pods {
		if handlerOf(p.name) != "" {
			inGVisor = append(inGVisor, p)
		} else {
			others = append(others, p)
		}
	}
	return others, inGVisor
}

// bare runs the command as on a node without Kubernetes: it asks the kernel and
// libcni's cache, and no runtime.
func (n *node) bare(command string, flags ...string) pass {
	n.t.Helper()
	p, err := hostlocalGC(n.t.Context(), append([]string{command, "--network", n.network, "-o", "json"}, flags...)...)
	n.must(err)
	if p.status != 0 {
		n.t.Fatalf("hostlocal-gc %s: %v", command, p)
	}
	return p
}

// ripen makes all reservations older than a minimum age of seconds, and no older.
func (n *node) ripen() {
	n.t.Helper()
	n.must(stamp(n.network, 10*time.Second, slices.Collect(maps.Keys(n.reservations(n.network)))...))
}

// freed checks that a pass releases what the dead hold and keeps what the living do.
func (n *node) freed(p pass, reason string, dead, live []pod) {
	n.t.Helper()
	same(n.t, "released", "the first pass: "+reason, holding(dead...), p.released)
	same(n.t, "reservations", reason, holding(live...), n.reservations(n.network))
	for _, ip := range addressesOf(live) {
		same(n.t, ip.String(), "its container is live", "in-use", p.verdicts[ip])
	}
}

// kernelAlone are flags of the command for the same minimum age without the cache.
func kernelAlone() []string { return []string{kernel, "--min-age", secondsAge.String()} }

// Containers are killed with their shims while containerd does not run, so nobody
// does the DEL. Without Kubernetes the first pass finds all of them.
func TestKilledWithoutKubernetesOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		live, dead := n.runEach("live", 2), n.runEach("dead", 3)
		n.kill()
		for _, c := range dead {
			c.kill()
		}
		n.ripen()
		shown, hidden := apartByGVisor(podsOf(live))
		same(t, "plan of the kernel alone", "it does not know whose the others are, and gVisor has taken addresses of live ones",
			joined(verdicts("in-use", addressesOf(shown)...), verdicts("foreign", addressesOf(append(hidden, podsOf(dead)...))...)),
			n.bare("plan", kernelAlone()...).verdicts)
		p := n.bare("release", inSeconds()...)
		n.freed(p, "the kernel has no process and no mount of their namespaces", podsOf(dead), podsOf(live))
		n.start()
		same(t, "reservations", "containerd has cleaned up what was killed", holding(podsOf(live)...), n.reservations(n.network))
		n.tellBare("a kill without a DEL", dead, live, p)
	})
}

// The power fails on a node without Kubernetes, which keeps its disk: the
// reservations, libcni's cache and what containerd and nerdctl know.
func TestPowerLossWithoutKubernetesOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		dead := n.runEach("dead", 3)
		numbers := n.numbersOf(dead)
		n.reboot(false)
		n.ripen()
		all := addressesOf(podsOf(dead))
		same(t, "plan of the kernel alone", "it does not know whose they are",
			verdicts("foreign", all...), n.bare("plan", kernelAlone()...).verdicts)
		same(t, "plan", "nothing runs yet", verdicts("leaked", all...), n.bare("plan", inSeconds()...).verdicts)

		n.start()
		live := n.runEach("live", 2)
		n.ripen()
		n.givenAgain(numbers)
		p := n.bare("release", inSeconds()...)
		n.freed(p, "what they were is gone, and others have their process numbers", podsOf(dead), podsOf(live))
		n.tellBare("a power loss", dead, live, p)
	})
}

// tellBare prints the figures.
func (n *node) tellBare(after string, dead, live []container, p pass) {
	n.t.Helper()
	version, err := n.cri.Version(n.t.Context(), &runtimeapi.VersionRequest{})
	n.must(err)
	kept, lost := 0, 0
	for _, ip := range addressesOf(podsOf(live)) {
		switch p.verdicts[ip] {
		case "in-use":
			kept++
		case "released":
			lost++
		}
	}
	n.figure(fmt.Sprintf("Minimum age %v, netns and cnicache, without Kubernetes, on %s %s, first pass after %s: "+
		"ctr, nerdctl and go-cni had %d addresses of %d dead containers, and %d of %d live ones; %d released, %d live kept, %d live released",
		secondsAge, version.GetRuntimeName(), version.GetRuntimeVersion(), after,
		len(addressesOf(podsOf(dead))), len(dead), len(addressesOf(podsOf(live))), len(live), len(p.released), kept, lost))
}
