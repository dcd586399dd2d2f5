// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runEach runs containers with every client, and one more in gVisor if the client can.
func (n *node) runEach(name string, count int) []container {
	n.t.Helper()
	return n.runEachIn(name, count, true)
}

// runEachIn is runEach with or without gVisor.
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

// splitByGVisor separates pods in gVisor from others.
func splitByGVisor(pods []pod) (others, inGVisor []pod) {
	for _, p := range pods {
		if handlerOf(p.name) != "" {
			inGVisor = append(inGVisor, p)
		} else {
			others = append(others, p)
		}
	}
	return others, inGVisor
}

// bare runs the command as on a node without Kubernetes: with the kernel and libcni's cache as
// sources, and without a runtime.
func (n *node) bare(command string, flags ...string) pass {
	n.t.Helper()
	p, err := hostlocalGC(n.t.Context(), append([]string{command, "--network", n.network, "-o", "json"}, flags...)...)
	n.must(err)
	if p.status != 0 {
		n.t.Fatalf("hostlocal-gc %s: %v", command, p)
	}
	return p
}

// makeSecondsOld makes all reservations older than a minimum age of seconds, but not older
// than the default.
func (n *node) makeSecondsOld() {
	n.t.Helper()
	n.must(stamp(n.network, 10*time.Second, slices.Collect(maps.Keys(n.reservations(n.network)))...))
}

// wantReleased checks that a pass released the addresses of dead pods, and kept those of live
// ones.
func (n *node) wantReleased(p pass, reason string, dead, live []pod) {
	n.t.Helper()
	same(n.t, "released", "the first pass: "+reason, holding(dead...), p.released)
	same(n.t, "reservations", reason, holding(live...), n.reservations(n.network))
	for _, ip := range addressesOf(live) {
		same(n.t, ip.String(), "its container is live", "in-use", p.verdicts[ip])
	}
}

// kernelAlone returns flags of the command for the same minimum age without the cache.
func kernelAlone() []string { return []string{kernel, "--min-age", secondsAge.String()} }

// Containers are killed with their shims while containerd does not run, so no DEL is called.
// Without Kubernetes the first pass finds all leaks.
func TestKilledWithoutKubernetesOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		live, dead := n.runEach("live", 2), n.runEach("dead", 3)
		n.kill()
		for _, c := range dead {
			c.kill()
		}
		n.makeSecondsOld()
		shown, hidden := splitByGVisor(podsOf(live))
		same(t, "plan of the kernel alone", "the others are foreign, and gVisor hides the addresses of live containers",
			joined(verdicts("in-use", addressesOf(shown)...), verdicts("foreign", addressesOf(append(hidden, podsOf(dead)...))...)),
			n.bare("plan", kernelAlone()...).verdicts)
		p := n.bare("release", inSeconds()...)
		n.wantReleased(p, "the kernel has no process and no mount of their namespaces", podsOf(dead), podsOf(live))
		n.start()
		same(t, "reservations", "containerd has removed the killed containers", holding(podsOf(live)...), n.reservations(n.network))
		n.reportBare("a kill without a DEL", dead, live, p)
	})
}

// The power fails on a node without Kubernetes. The disk keeps the reservations, libcni's cache
// and the records of containerd and nerdctl.
func TestPowerLossWithoutKubernetesOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		dead := n.runEach("dead", 3)
		numbers := n.pidsIn(dead)
		n.reboot(false)
		n.makeSecondsOld()
		all := addressesOf(podsOf(dead))
		same(t, "plan of the kernel alone", "all reservations are foreign",
			verdicts("foreign", all...), n.bare("plan", kernelAlone()...).verdicts)
		same(t, "plan", "nothing runs yet", verdicts("leaked", all...), n.bare("plan", inSeconds()...).verdicts)

		n.start()
		live := n.runEach("live", 2)
		n.makeSecondsOld()
		n.reusePIDs(numbers)
		p := n.bare("release", inSeconds()...)
		n.wantReleased(p, "the containers are gone, and other processes have their process IDs", podsOf(dead), podsOf(live))
		n.reportBare("a power loss", dead, live, p)
	})
}

// reportBare prints the figures.
func (n *node) reportBare(after string, dead, live []container, p pass) {
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
	fmt.Printf("Minimum age %v, netns and cnicache, without Kubernetes, on %s %s, first pass after %s: "+
		"ctr, nerdctl and go-cni had %d addresses of %d dead containers, and %d of %d live ones; %d released, %d live kept, %d live released\n",
		secondsAge, version.GetRuntimeName(), version.GetRuntimeVersion(), after,
		len(addressesOf(podsOf(dead))), len(dead), len(addressesOf(podsOf(live))), len(live), len(p.released), kept, lost)
}
