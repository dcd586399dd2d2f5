// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pods of Kubernetes and containers of ctr, nerdctl and another client share a network. Some of
// each are live, and some have leaked. With any of the sources no live one loses its address,
// and with all of them every leak is released.
//
// Guard: [Source.Pods] declares the form of the IDs that it names.
func TestHazard49TogetherOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		n.runAgent() // so that the output of crictl has several namespaces, and counts as complete
		pods, containers := n.runSome("live", 2), podsOf(n.runEachIn("live", 2, false))
		live := slices.Concat(pods, containers)
		deadPods, deadContainers := n.runSome("dead", 2), n.runEachIn("dead", 2, false)
		resume := n.endWithoutDEL(deadPods, deadContainers)

		others := append(containers, podsOf(deadContainers)...)
		known := joined(verdicts("in-use", addressesOf(pods)...), verdicts("foreign", addressesOf(others)...))
		p, err := hostlocalGC(t.Context(), "plan", "--network", n.network, "-o", "json", "--source", "file:"+n.writeCrictlPods())
		n.must(err)
		same(t, "plan with a file: "+p.stderr, "crictl prints what the runtime lists",
			joined(known, verdicts("leaked", addressesOf(deadPods)...)), p.verdicts)
		p = n.release(n.network)
		same(t, "pass with the runtime alone", "it does not list the others",
			joined(known, verdicts("released", addressesOf(deadPods)...)), p.verdicts)
		n.reportTogether("cri", live, p)

		p = n.release(n.network, kernel)
		same(t, "pass with runtime and kernel", "the kernel shows which of the others are live",
			joined(verdicts("in-use", addressesOf(live)...), verdicts("released", addressesOf(podsOf(deadContainers))...)), p.verdicts)
		same(t, "reservations", "after it", holding(live...), n.reservations(n.network))
		n.reportTogether("cri and netns", live, p)
		resume()

		// gVisor hides its addresses from the kernel, so the cache is needed, too.
		live = append(live, podsOf(n.runEach("more", 1))...)
		deadPods, deadContainers = n.runSome("ended", 2), n.runEach("ended", 2)
		dead := append(deadPods, podsOf(deadContainers)...)
		n.endWithoutDEL(deadPods, deadContainers)
		p = n.release(n.network, kernel, "--source", "cnicache")
		same(t, "pass with runtime, kernel and cache", "together they show all",
			joined(verdicts("in-use", addressesOf(live)...), verdicts("released", addressesOf(dead)...)), p.verdicts)
		same(t, "reservations", "after all passes", holding(live...), n.reservations(n.network))
		n.reportTogether("cri, netns and cnicache", live, p)
	})
}

// endWithoutDEL ends pods and containers while their network has another name, so that no DEL
// finds their addresses, and makes all reservations old. resume restores the name of the network.
func (n *node) endWithoutDEL(pods []pod, containers []container) (resume func()) {
	n.t.Helper()
	network := n.network
	n.configure("elsewhere")
	n.awaitNetwork("elsewhere")
	for _, p := range pods {
		n.remove(p.id)
	}
	for _, c := range containers {
		c.kill()
	}
	n.network = network
	n.age(network)
	all := slices.Concat(pods, podsOf(containers))
	for _, p := range all {
		same(n.t, p.name, "its addresses have leaked", p.ips, n.heldBy(network, p.id))
	}
	return func() {
		n.t.Helper()
		n.configure(network)
		n.awaitNetwork(network)
	}
}

// writeCrictlPods writes the output of `crictl pods -o json`, and returns the file.
func (n *node) writeCrictlPods() string {
	n.t.Helper()
	answer, err := n.cri.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	n.must(err)
	items := []any{}
	for _, s := range answer.GetItems() {
		m := s.GetMetadata()
		items = append(items, map[string]any{
			"id": s.GetId(), "state": s.GetState().String(), "createdAt": fmt.Sprint(s.GetCreatedAt()),
			"metadata": map[string]any{"name": m.GetName(), "uid": m.GetUid(), "namespace": m.GetNamespace(), "attempt": m.GetAttempt()},
			"labels":   s.GetLabels(), "annotations": s.GetAnnotations(), "runtimeHandler": s.GetRuntimeHandler(),
		})
	}
	text, err := json.MarshalIndent(map[string]any{"items": items}, "", "  ")
	n.must(err)
	file := n.path("crictl.json")
	n.must(os.WriteFile(file, text, 0o600))
	return file
}

// reportTogether prints the figures.
func (n *node) reportTogether(sources string, live []pod, p pass) {
	n.t.Helper()
	lost, foreign := 0, 0
	for _, ip := range addressesOf(live) {
		if p.verdicts[ip] == "released" {
			lost++
		}
	}
	for _, v := range p.verdicts {
		if v == "foreign" {
			foreign++
		}
	}
	fmt.Printf("Pods, ctr, nerdctl and go-cni in one network, containerd %s, sources %s: "+
		"%d addresses of live ones, of which %d were released; %d of dead ones released, %d kept as foreign\n",
		n.name, sources, len(addressesOf(live)), lost, len(p.released)-lost, foreign)
}
