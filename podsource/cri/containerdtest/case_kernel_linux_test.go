// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kernel is the flag that adds the kernel to the sources. The node's process 1 is
// not that of the machine, which the source wants to be told.
const kernel = "--source=netns:nested"

// The runtime loses a sandbox's record, while its process and its network
// namespace live on. Only the kernel knows of it.
//
// Guard: [netns.Source.Pods] has the address. The runtime alone loses it.
func TestHazard33OnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		network := n.netnsOf(victim)
		n.loseRecord(victim)
		if _, listed := n.sandboxes()[victim.id]; listed {
			t.Fatal("the runtime still lists the sandbox")
		}
		if len(n.processesOf(victim)) == 0 {
			t.Fatal("the sandbox's process did not survive")
		}
		n.age(n.network)
		both := joined(verdicts("in-use", live.ips...), verdicts("in-use", victim.ips...))
		same(t, "plan with the runtime alone", "that is the danger: the runtime does not know the sandbox",
			joined(verdicts("in-use", live.ips...), verdicts("leaked", victim.ips...)), n.plan(n.network).verdicts)
		same(t, "pass", "the kernel has the addresses", both, n.release(n.network, kernel).verdicts)

		for _, pid := range n.processesOf(victim) {
			n.must(syscall.Kill(pid, syscall.SIGKILL))
		}
		awaitAlone(t, append(n.processesOf(live), n.cmd.Process.Pid)...)
		same(t, "pass", "the namespace is still mounted, with the addresses", both, n.release(n.network, kernel).verdicts)

		n.must(syscall.Unmount(network, 0))
		n.must(os.Remove(network))
		same(t, "released", "nobody has them any more", holding(victim), n.release(n.network, kernel).released)
		same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
	})
}

// The same for a pod in gVisor, whose namespace shows no address: nothing but its
// entry in libcni's cache is left.
//
// Guard: [cnicache.Source.Pods] names the container. Runtime and kernel lose
// it.
func TestHazard59NoAddressInTheKernelOnContainerd(t *testing.T) {
	n := newNode(t, current(), withGVisor)
	live, victim := n.run("live"), n.run(gvisorPods+"-victim")
	network := n.netnsOf(victim)
	n.loseRecord(victim)
	if _, listed := n.sandboxes()[victim.id]; listed {
		t.Fatal("the runtime still lists the sandbox")
	}
	pids := n.processesOf(victim)
	if len(pids) < 3 {
		t.Fatalf("processes %v survived, and a shim, a gofer and a sandbox were wanted", pids)
	}
	n.age(n.network)
	before := n.reservations(n.network)
	both := joined(verdicts("in-use", live.ips...), verdicts("in-use", victim.ips...))
	same(t, "plan with the runtime and the kernel", "that is the danger: gVisor has taken the addresses",
		joined(verdicts("in-use", live.ips...), verdicts("leaked", victim.ips...)), n.plan(n.network, kernel).verdicts)
	same(t, "pass at the default age", "the entry's namespace is mounted", both, n.release(n.network, kernel, "--source", "cnicache").verdicts)
	n.ripen()
	same(t, "pass in seconds", "the entry's namespace is mounted", both, n.release(n.network, inSeconds()...).verdicts)
	same(t, "pass in seconds without the runtime", "the entry's namespace is mounted", both, n.bare("release", inSeconds()...).verdicts)
	same(t, "reservations", "after all passes", before, n.reservations(n.network))

	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it may end with another
			n.must(err)
		}
	}
	n.awaitGone(pids)
	same(t, "pass in seconds", "the namespace is still mounted", both, n.release(n.network, inSeconds()...).verdicts)
	n.must(syscall.Unmount(network, 0))
	n.must(os.Remove(network))
	same(t, "released", "nobody has them any more", holding(victim), n.release(n.network, inSeconds()...).released)
	same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
}

// netnsOf returns where the network namespace of a pod is mounted.
func (n *node) netnsOf(p pod) string {
	n.t.Helper()
	answer, err := n.cri.PodSandboxStatus(n.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true})
	n.must(err)
	for _, text := range answer.GetInfo() {
		var info struct {
			RuntimeSpec struct {
				Linux struct {
					Namespaces []struct{ Type, Path string }
				}
			}
		}
		if json.Unmarshal([]byte(text), &info) != nil {
			continue // not every value is JSON
		}
		for _, ns := range info.RuntimeSpec.Linux.Namespaces {
			if ns.Type == "network" {
				return ns.Path
			}
		}
	}
	n.t.Fatalf("pod %s has no network namespace: %v", p.name, answer.GetInfo())
	return ""
}

// processesOf are those of a pod: its shim, and what that started. gVisor's, which
// are in no control group of the pod, have its ID among their arguments, too.
func (n *node) processesOf(p pod) []int {
	n.t.Helper()
	all, err := others()
	n.must(err)
	var out []int
	for _, pid := range all {
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			continue // it has just ended
		}
		if strings.Contains(strings.Join(arguments(pid), " "), p.id) || strings.Contains(string(group), p.id) {
			out = append(out, pid)
		}
	}
	return out
}

// loseRecord makes the runtime forget a sandbox that runs. What the task is comes
// from containerd's state, and goes first: a running one can't be deleted.
func (n *node) loseRecord(p pod) {
	n.t.Helper()
	n.stop()
	tasks, err := filepath.Glob(n.path("state/*/k8s.io/" + p.id))
	n.must(err)
	if len(tasks) != 1 {
		n.t.Fatalf("pod %s has the tasks %q", p.name, tasks)
	}
	n.must(os.Rename(tasks[0], n.path("lost-"+p.id)))
	n.start()
	n.ctr("containers", "delete", p.id)
	if n.name == current().name {
		n.ctr("sandboxes", "rm", "--force", p.id)
	}
	n.stop()
	n.start()
}

// A pod is deleted by force: gone from the API, and from kubelet. Its sandbox is
// up, and has its addresses.
//
// Guard: [Source.Pods] names a sandbox by its container ID.
func TestHazard35OnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		n.age(n.network)
		list, err := json.Marshal([]any{map[string]any{"namespace": namespace, "name": live.name, "ips": live.ips}})
		n.must(err)
		n.must(os.WriteFile(n.path("pods.json"), list, 0o600))
		kubelet := "--source=file:" + n.path("pods.json") // what it would say
		runtime := "--source=cri:" + n.endpoint()

		before := n.reservations(n.network)
		inUse := verdicts("in-use", live.ips...)
		both := joined(inUse, verdicts("in-use", victim.ips...))
		for _, c := range []struct {
			command, reason string
			sources         []string
			released        bool
		}{
			{"plan", "that is the danger: kubelet does not know the pod", []string{kubelet}, true},
			{"release", "the runtime lists the sandbox", []string{kubelet, runtime}, false},
			{"release", "the kernel has the addresses", []string{kubelet, kernel}, false},
			{"release", "both know", []string{kubelet, runtime, kernel}, false},
		} {
			p, err := hostlocalGC(t.Context(), append([]string{c.command, "--network", n.network, "-o", "json"}, c.sources...)...)
			n.must(err)
			want := both
			if c.released {
				want = joined(inUse, verdicts("leaked", victim.ips...))
			}
			same(t, fmt.Sprintf("%s with %q: %s", c.command, c.sources, p.stderr), c.reason, want, p.verdicts)
		}
		same(t, "reservations", "after all passes", before, n.reservations(n.network))
		n.remove(victim.id)
		same(t, "reservations", "the sandbox was removed by its DEL", holding(live), n.reservations(n.network))
	})
}
