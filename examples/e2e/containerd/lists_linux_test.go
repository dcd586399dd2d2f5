// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// What containerd lists, and when, with the runtime as the only source.

// The ADD of a pod has its addresses and has not returned. The runtime does not list the sandbox, so only the minimum
// age keeps the reservations.
//
// Guard: [Source.Pods] declares RuntimeLag.
func TestHazard04ADDInFlight(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		starting := n.runHeld("ADD", "starting")
		before := n.reservations()
		ids := otherContainers(before, live)
		if len(ids) != 1 {
			t.Fatalf("the reservations are %v, want one container besides %s", before, live.id)
		}
		ips := n.heldBy(ids[0])
		if _, listed := n.sandboxes()[ids[0]]; listed || len(ips) != 2 {
			t.Fatalf("%s holds %v, listed: %t, so the test shows nothing", ids[0], ips, listed)
		}
		inUse := verdicts(gc.InUse, live.ips...)
		young := joined(inUse, verdicts(gc.Young, ips...))
		n.must(n.stamp(time.Hour, ips...))
		same(t, "plan with old reservations", "the hazard: the runtime does not list the pod", joined(inUse, verdicts(gc.Leaked, ips...)), n.plan().verdicts)
		n.must(n.stamp(2*time.Minute, ips...))
		same(t, "plan with a minimum age of a second", "the lag of the runtime counts", young, n.plan("--min-age", "1s").verdicts)
		n.must(n.stamp(0, ips...))
		same(t, "pass", "younger than the minimum age", young, n.release().verdicts)
		for reason, assertions := range map[string][]gc.Assertion{
			"the start-up hook has the same answer":          nil,
			"a source with a lag waives nothing (hazard 73)": {gc.NoADDInFlight},
		} {
			got := make(map[netip.Addr]string)
			for _, e := range n.hook(assertions...).Reservations {
				got[e.IP] = string(e.Verdict)
			}
			same(t, "hook", reason, young, got)
		}
		same(t, "reservations", "after all passes", before, n.reservations())

		n.resume()
		p := n.wait(starting)
		same(t, "container", "the one that was starting", ids[0], p.id)
		n.age()
		n.release()
		n.wantLeft("both pods run, with old reservations", live, p)
	})
}

// A sandbox that is not ready is in the list, and holds its addresses until a stop calls DEL.
//
// Guard: [podsOf] converts sandboxes in any state.
func TestHazard05NotReady(t *testing.T) {
	for _, c := range []struct {
		reason string
		make   func(n *node, live pod) (id string) // of a sandbox that is listed with its reservations
		mend   func(n *node)
	}{
		{"the runtime is killed during an ADD, and has recorded the sandbox by then", func(n *node, live pod) string {
			starting := n.runHeld("ADD", "victim")
			n.kill()
			n.resume()
			<-starting.done
			ids := otherContainers(n.reservations(), live)
			if starting.err == nil || len(ids) != 1 {
				n.t.Fatalf("the pod must fail and leave the reservations of one container: %v, %v", starting.err, ids)
			}
			n.start()
			n.wantState(ids[0], notReady, "it was recorded before the ADD")
			return ids[0]
		}, func(*node) {}},
		{"a plugin is missing at the stop, as during an update", func(n *node, _ pod) string {
			victim := n.run("victim")
			n.must(os.Remove(n.path("cni/bin/gate")))
			return n.cannotStop(victim)
		}, func(n *node) { n.link("parts", "cni/bin/gate") }},
		{"the network's configuration is missing at the stop", func(n *node, _ pod) string {
			victim := n.run("victim")
			n.stop()
			n.must(os.Remove(n.path("cni/conf/10-pods.conflist")))
			n.launch()
			n.must(eventually(func() error { // it can't run pods
				_, err := n.cri.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
				return err
			}))
			return n.cannotStop(victim)
		}, func(n *node) {
			n.configure(n.network)
			n.awaitReady()
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			onEach(t, func(t *testing.T, n *node) {
				live := n.run("live")
				id := c.make(n, live)
				n.keptWhileListed(id)
				c.mend(n)
				n.keptThenFreed(id, live)
			})
		})
	}
	// Processes and network namespaces end, and containerd's state is removed. Its root stays.
	t.Run("a reboot", func(t *testing.T) {
		onEach(t, func(t *testing.T, n *node) {
			pods := n.runSome("web", 3)
			n.reboot(false)
			n.start()
			for _, p := range pods {
				n.wantState(p.id, notReady, "the node was rebooted")
				ips, err := n.addresses(t.Context(), p.id)
				n.must(err)
				same(t, "addresses", "the network namespace is gone", nil, ips)
			}
			n.keptThenFreed(pods[0].id, pods[1:]...)
			n.keptThenFreed(pods[1].id, pods[2])
		})
	})
}

// cannotStop checks that a pod can't be stopped, and returns its ID.
func (n *node) cannotStop(p pod) string {
	n.t.Helper()
	if err := n.tryStop(n.t.Context(), p.id); err == nil {
		n.t.Fatalf("%v was stopped", p)
	}
	return p.id
}

// keptWhileListed checks that old reservations are kept while a sandbox is listed.
func (n *node) keptWhileListed(id string) {
	n.t.Helper()
	before := n.reservations()
	n.age()
	same(n.t, "released", "the sandbox is listed: "+n.sandboxes()[id], nil, n.release().released)
	same(n.t, "reservations", "after the pass", before, n.reservations())
}

// keptThenFreed checks that old reservations are kept while their sandbox is listed, and gone after the sandbox was
// removed.
func (n *node) keptThenFreed(id string, others ...pod) {
	n.t.Helper()
	n.keptWhileListed(id)
	n.remove(id)
	n.release()
	n.wantLeft("after the sandbox's removal and a pass", others...)
}

// The power fails before the disk has the data of one reservation: the file exists, and is empty. No DEL will ever
// remove it.
//
// Guard: [gc.Options.MinAge] keeps an empty file while it is young.
func TestHazard14PowerLoss(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 2)
		n.reboot(false)
		lost := pods[0].ips[0]
		n.must(os.Truncate(n.reservationFile(lost), 0))
		n.start()
		want := joined(holding(pods...), verdicts("", lost))
		same(t, "pass", "younger than the minimum age", nil, n.release().released)
		same(t, "reservations", "after a pass while it is young", want, n.reservations())
		n.age()
		same(t, "released", "an empty file has no owner, and no pod has its address", verdicts("", lost), n.release().released)
		delete(want, lost)
		same(t, "reservations", "after the pass", want, n.reservations())
	})
}

// The node was installed again and kept /var/lib/cni. The runtime knows no sandbox.
//
// Guard: [gc.ErrNoPods] is the error of an answer without a sandbox.
func TestHazard20AllSandboxesGone(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 3)
		n.reboot(true)
		n.start()
		n.importImage()
		n.age()
		n.refused("reports no pod at all")
		n.runAgent()
		same(t, "released", "no sandbox has them", holding(pods...), n.release().released)
	})
}

// The network is renamed between a pod's ADD and its DEL. The DEL calls host-local for the new network, which has no
// reservation.
//
// Guard: [Source.Pods] names each sandbox in all networks, and [gc.New] requires the networks in which it may
// release.
func TestHazard21NetworkRenamed(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		const old, renamed = "podnet", "podnet2"
		live, victim := n.run("live"), n.run("victim")
		n.configure(renamed)
		n.awaitNetwork(renamed)
		n.remove(victim.id)
		young := n.run("young")
		n.age()
		n.network = old
		n.age()
		n.network = renamed
		same(t, "released", "the pass is for another network", nil, n.release().released)
		n.network = old
		n.wantLeft("the DEL was for the other network", live, victim)
		same(t, "released", "no sandbox has them", holding(victim), n.release().released)
		n.wantLeft("in the old network", live)
		n.network = renamed
		n.wantLeft("in the new network", young)
	})
}

// An ADD fails after its IPAM, and the DEL fails, too. containerd 2 removes its record of such a sandbox. containerd
// 1.6 lists it as not ready.
//
// Guard: [gc.Options.MinAge] keeps young reservations, and [Source.Pods] those of listed sandboxes.
func TestHazard21FailedADDAndFailedDEL(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		n.fail("victim")
		ids := otherContainers(n.reservations(), live)
		if len(ids) != 1 || len(n.heldBy(ids[0])) != 2 {
			t.Fatalf("nothing has leaked: the reservations are %v", n.reservations())
		}
		same(t, "released", "younger than the minimum age", nil, n.release().released)
		if n.name == debian().name {
			n.wantState(ids[0], notReady, "its DEL must be repeated")
			n.keptThenFreed(ids[0], live)
			return
		}
		n.age()
		same(t, "released", "no sandbox has them", verdicts(gc.Verdict(ids[0]), n.heldBy(ids[0])...), n.release().released)
		n.wantLeft("after the pass", live)
	})
}

// A runtime that is stopped, was killed, or is still recovering returns no list, and nothing is released. Its pods
// run on.
func TestNothingIsReleasedWithoutTheRuntime(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		n.leak(victim)
		n.stop()
		n.refused("there is no socket")
		n.start()
		n.kill()
		n.refused("nothing listens on it")

		shim := 0
		for _, pid := range n.processesOf(live) {
			if strings.Contains(arguments(pid), "containerd-shim") {
				shim = pid
			}
		}
		n.must(syscall.Kill(shim, syscall.SIGSTOP)) // containerd waits for it while it recovers
		n.launch()
		// Either the socket or the CRI is not ready. containerd 1.6 has its own message for that.
		recovering := []string{"list of pods is incomplete", "server is not initialized yet"}
		for range 5 {
			n.refused(recovering...)
		}
		n.must(syscall.Kill(shim, syscall.SIGCONT))
		p := n.try("release", n.runtime())
		for ; p.status != 0 && !t.Failed(); p = n.try("release", n.runtime()) {
			n.wantError(p, recovering...)
		}
		same(t, "released", "the first answer has the live pod", holding(victim), p.released)
		n.wantLeft("after the pass", live)
	})
}

// An unused containerd has the default socket. The node's own has a socket of its own, and later also that of k3s.
//
// Guard: [Source.list] returns an error in a search without any sandbox, and [DefaultEndpoints] has the socket of
// k3s.
func TestHazard53IdleRuntimeIsFound(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		n.leak(victim)
		n.startOtherContainerd()
		for _, flags := range [][]string{{search}, {search, "--allow-empty"}, {search, "--allow-empty", kernel}} {
			n.wantError(n.try("release", flags...), idle)
		}
		n.wantLeft("the node's own runtime was not found", live, victim)

		t.Setenv(endpointEnv, n.endpoint())
		same(t, "plan", "crictl's variable names it", joined(verdicts(gc.InUse, live.ips...), verdicts(gc.Leaked, victim.ips...)), n.only("plan", search).verdicts)
		t.Setenv(endpointEnv, "")

		n.must(os.MkdirAll("/run/k3s/containerd", 0o755))
		t.Cleanup(func() { n.must(os.RemoveAll("/run/k3s")) })
		n.must(os.Symlink(n.socket(), "/run/k3s/containerd/containerd.sock"))
		same(t, "released", "the node's own is found", holding(victim), n.only("release", search).released)
		n.wantLeft("after the pass", live)
	})
}

// A search for the runtime, and what it says of an unused containerd.
const (
	search = "--source=cri"
	idle   = "unix:///run/containerd/containerd.sock (no sandbox)"
)

// startOtherContainerd starts a second containerd with the default socket.
func (n *node) startOtherContainerd() {
	n.t.Helper()
	const dir, socket = "/run/containerd", "/run/containerd/containerd.sock"
	n.must(os.MkdirAll(dir, 0o755))
	cmd := n.program("containerd", "--config", n.path("config.toml"), "--address", socket, "--root", dir+"/root", "--state", dir+"/state")
	n.must(cmd.Start())
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		n.must(os.RemoveAll(dir))
	})
	n.await("the other containerd to answer", func(context.Context) error {
		if p := n.try("plan", search); !strings.Contains(p.stderr, idle) {
			return fmt.Errorf("a search says %s", p.stderr)
		}
		return nil
	})
}
