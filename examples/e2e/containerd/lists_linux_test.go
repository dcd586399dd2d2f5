// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
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

// keptWhileListed checks that old reservations are kept while a sandbox that is not ready is listed, and that its entry
// says so (hazard 102).
func (n *node) keptWhileListed(id string) {
	n.t.Helper()
	before := n.reservations()
	if p, _ := n.entry(id); !p.NotRunning || !strings.Contains(p.Origin, id+", not ready") {
		n.t.Errorf("its entry is %+v", p)
	}
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

// An interface was attached under the ID of a container, not of its sandbox. It is in the sandbox's network namespace, so
// it stays when the container ends. The runtime lists the container until it is removed.
//
// Guard: [podsOf] adds the containers to their sandboxes, in any state.
func TestHazard88HotPlug(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		container, err := n.cri.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: live.id, SandboxConfig: sandboxConfig(live.name, runtimeapi.NamespaceMode_POD),
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, Image: &runtimeapi.ImageSpec{Image: pauseImage},
				Linux: &runtimeapi.LinuxContainerConfig{},
			},
		})
		n.must(err)
		id := container.GetContainerId()
		plugged := pod{name: "hot-plugged", id: id, ips: []netip.Addr{live.ips[0].Next().Next()}}
		n.must(os.WriteFile(n.reservationFile(plugged.ips[0]), []byte(id+"\r\nnet1"), 0o600))
		kept := func(state runtimeapi.ContainerState, err error) {
			t.Helper()
			n.must(err)
			answer, err := n.cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
			n.must(err)
			if all := answer.GetContainers(); len(all) != 1 || all[0].GetId() != id || all[0].GetState() != state {
				t.Fatalf("the containers are %v, want %s, %s", all, id, state)
			}
			n.age()
			same(t, "released", state.String(), nil, n.release().released)
			n.wantLeft(state.String(), live, plugged)
		}
		kept(runtimeapi.ContainerState_CONTAINER_CREATED, nil)
		_, err = n.cri.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		kept(runtimeapi.ContainerState_CONTAINER_RUNNING, err)
		_, err = n.cri.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
		kept(runtimeapi.ContainerState_CONTAINER_EXITED, err)
		_, err = n.cri.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		n.must(err)
		same(t, "released", "the container was removed", holding(plugged), n.release().released)
		n.wantLeft("its sandbox is listed", live)
	})
}

// The runtime checks the network namespace of a sandbox for its status. That hangs on a file system that does not answer,
// and fails when its server has ended. The sandbox is kept by its ID, and the others are judged.
//
// Guard: [addStatuses] limits the time of a request, and its error is not one of the answer.
func TestHazard90OneStatus(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, stuck := n.run("live"), n.run("stuck")
		path := n.netnsOf(stuck)
		fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		n.must(err)
		n.must(syscall.Mount("none", path, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=100000,user_id=0,group_id=0", fuse.Fd())))
		t.Cleanup(func() {
			_ = fuse.Close() // the test may have closed it
			n.must(syscall.Unmount(path, syscall.MNT_DETACH))
		})
		check := func(reason, says string) {
			t.Helper()
			victim := n.run("victim")
			n.leak(victim)
			hung, note := n.entry(stuck.id)
			if known := "1 of 2 sandboxes are known, one is " + stuck.id; !hung.MoreIPs || !strings.Contains(note, known) || !strings.Contains(note, says) {
				t.Errorf("%s: its entry is %+v, the note %q", reason, hung, note)
			}
			other, _ := n.entry(live.id)
			same(t, "addresses of the other", reason, live.ips, other.IPs)
			same(t, "released", reason, holding(victim), n.release().released)
			n.wantLeft(reason, live, stuck)
		}
		check("it hangs", "no answer in time")
		n.must(fuse.Close())
		check("it fails", syscall.ENOTCONN.Error())
	})
}

// The node was installed again and kept /var/lib/cni. The runtime knows no sandbox.
//
// Guard: [gc.ErrNoPods] is the error of an answer without a sandbox, and in a search that is one of the source.
func TestHazard20AllSandboxesGone(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 3)
		n.reboot(true)
		n.start()
		n.importImage()
		n.age()
		n.refused("reports no pod at all")
		const dir, socket = "/run/containerd", "/run/containerd/containerd.sock" // the default
		n.must(errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(n.socket(), socket)))
		t.Cleanup(func() { n.must(os.RemoveAll(dir)) })
		n.wantError(n.try("release", "--source=cri", "--allow-empty"), "unix://"+socket+" (no sandbox)") // it may be another one (hazard 53)
		n.runAgent()
		same(t, "released", "no sandbox has them", holding(pods...), n.release().released)
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
