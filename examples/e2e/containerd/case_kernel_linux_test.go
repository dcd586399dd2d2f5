// SPDX-License-Identifier: Apache-2.0

package containerd

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

// kernel is the flag that adds the kernel to the sources. The node has its own PID namespace,
// so the source is nested.
const kernel = "--source=netns:nested"

// The runtime loses the record of a sandbox whose process and network namespace still exist.
// Only the kernel shows it.
//
// Guard: [netns.Source.Pods] lists the address. With the runtime alone it is released.
func TestHazard33OnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		network := n.netnsOf(victim)
		n.loseRecord(victim)
		if _, listed := n.sandboxes()[victim.id]; listed {
			t.Fatal("the runtime still lists the sandbox")
		}
		if len(n.processesOf(victim)) == 0 {
			t.Fatal("the process of the sandbox has ended")
		}
		n.age(n.network)
		both := joined(verdicts("in-use", live.ips...), verdicts("in-use", victim.ips...))
		same(t, "plan with the runtime alone", "the hazard: the runtime does not list the sandbox",
			joined(verdicts("in-use", live.ips...), verdicts("leaked", victim.ips...)), n.plan(n.network).verdicts)
		same(t, "pass", "the kernel has the addresses", both, n.release(n.network, kernel).verdicts)

		for _, pid := range n.processesOf(victim) {
			n.must(syscall.Kill(pid, syscall.SIGKILL))
		}
		awaitAlone(t, append(n.processesOf(live), n.cmd.Process.Pid)...)
		same(t, "pass", "the namespace is still mounted, with the addresses", both, n.release(n.network, kernel).verdicts)

		n.must(syscall.Unmount(network, 0))
		n.must(os.Remove(network))
		same(t, "released", "nothing has them any more", holding(victim), n.release(n.network, kernel).released)
		same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
	})
}

// The same for a pod in gVisor, whose network namespace shows no address. Only its entry in
// libcni's cache is left.
//
// Guard: [cnicache.Source.Pods] names the container. With the runtime and the kernel its
// addresses are released.
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
		t.Fatalf("the processes are %v, want a shim, a gofer and a sandbox", pids)
	}
	n.age(n.network)
	before := n.reservations(n.network)
	both := joined(verdicts("in-use", live.ips...), verdicts("in-use", victim.ips...))
	same(t, "plan with the runtime and the kernel", "the hazard: gVisor hides the addresses",
		joined(verdicts("in-use", live.ips...), verdicts("leaked", victim.ips...)), n.plan(n.network, kernel).verdicts)
	same(t, "pass at the default age", "the entry's namespace is mounted", both, n.release(n.network, kernel, "--source", "cnicache").verdicts)
	n.makeSecondsOld()
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
	same(t, "released", "nothing has them any more", holding(victim), n.release(n.network, inSeconds()...).released)
	same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
}

// netnsOf returns the path of a pod's network namespace.
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

// processesOf returns the processes of a pod: its shim, and those that the shim started. The
// processes of gVisor are not in the control group of the pod, but have its ID in their
// arguments.
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

// loseRecord removes the runtime's record of a running sandbox. It first moves the task out of
// containerd's state, since a running container can't be deleted.
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

// A pod is deleted by force: the API server and kubelet do not list it. Its sandbox still runs,
// and has its addresses.
//
// Guard: [Source.Pods] names a sandbox by its container ID.
func TestHazard35OnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		n.age(n.network)
		list, err := json.Marshal([]any{map[string]any{"namespace": namespace, "name": live.name, "ips": live.ips}})
		n.must(err)
		n.must(os.WriteFile(n.path("pods.json"), list, 0o600))
		kubelet := "--source=file:" + n.path("pods.json") // the pods that kubelet would list
		runtime := "--source=cri:" + n.endpoint()

		before := n.reservations(n.network)
		inUse := verdicts("in-use", live.ips...)
		both := joined(inUse, verdicts("in-use", victim.ips...))
		for _, c := range []struct {
			command, reason string
			sources         []string
			released        bool
		}{
			{"plan", "the hazard: kubelet does not list the pod", []string{kubelet}, true},
			{"release", "the runtime lists the sandbox", []string{kubelet, runtime}, false},
			{"release", "the kernel has the addresses", []string{kubelet, kernel}, false},
			{"release", "both show it", []string{kubelet, runtime, kernel}, false},
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
		same(t, "reservations", "the DEL of the sandbox removed them", holding(live), n.reservations(n.network))
	})
}
