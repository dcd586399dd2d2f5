// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Incidents of other runtimes and collectors, and of people's remedies.

// A pod runs, and its status has no address yet. A collector that keeps only addresses in statuses releases the
// address of the pod, and host-local gives it to another pod.
func TestIncident_antrea8239(t *testing.T) {
	const size, running, leaked = 6, 2, 2
	start := func(t *testing.T) (n *node, live []pod, victim pod, statuses string) {
		t.Helper()
		n = newNode(t, current(), withPool(size))
		n.runAgent()
		live = n.runSome("live", running)
		n.leak(n.runSome("gone", leaked)...)
		since := time.Now().Add(-20 * time.Minute) // after what leaked an hour ago
		victim = n.run("victim")
		n.must(n.stamp(10*time.Minute, victim.ips...))
		return n, live, victim, n.writeStatuses(since, victim.name, live)
	}
	t.Run("addresses only", func(t *testing.T) {
		n, live, victim, _ := start(t)
		for ip := range n.reservations() { // a collector of the test, which is not the code of a product
			if !slices.Contains(addressesOf(live), ip) {
				n.must(os.Remove(n.reservationFile(ip)))
			}
		}
		got := addressesOf(n.runSome("late", size-running)) // the leaked and free addresses, and those of the live pod
		for _, ip := range victim.ips {
			if !slices.Contains(got, ip) {
				t.Errorf("new pods got %v, want also %v of the live pod", got, ip)
			}
		}
		n.alone("a collector that keeps only addresses in statuses releases %d of a live pod, and other pods get them", len(victim.ips))
	})
	t.Run("a pass", func(t *testing.T) {
		n, live, victim, statuses := start(t)
		p := n.only("release", statuses)
		same(t, "addresses released", "all that leaked", 2*leaked, len(p.released))
		live = append(live, victim)
		n.wantHeld("after a pass without an address in the status", live...)
		n.wantHeld("each address has one holder", append(live, n.runSome("late", leaked)...)...)
		n.ours("with the same statuses and nothing else %d of %d leaked addresses released, the live pod keeps its own", len(p.released), 2*leaked)
	})
}

// A pool is full of leaks, and an administrator follows the advice and removes the data directory while pods run.
// host-local gives their addresses to other pods.
func TestIncident_k3s5885(t *testing.T) {
	const size, running = 16, 10
	removed := func(t *testing.T) (n *node, live []pod, before map[string]string) {
		t.Helper()
		n = newNode(t, current(), withPool(size))
		n.runAgent()
		live = n.runSome("live", running)
		n.leak(n.runSome("gone", size-running)...)
		n.wantFull("with the pool full of leaks")
		before = n.files(live...)
		n.must(os.RemoveAll(networks))
		return n, live, before
	}
	t.Run("the directory is removed", func(t *testing.T) {
		n, live, _ := removed(t)
		n.wantFinding(3, "MISSING", fmt.Sprintf("%d addresses that are reserved nowhere", 2*running))
		same(t, "addresses of new pods", "host-local starts with the first address", addressesOf(live), addressesOf(n.runSome("late", running)))
		n.wantFinding(3, "DUPLICATE", "")
		n.alone("%d pods that start after the `rm` get the addresses of live pods", running)
	})
	t.Run("repair", func(t *testing.T) {
		n, live, before := removed(t)
		repair := func(status int, flags ...string) string {
			t.Helper()
			got, out, stderr := n.hostlocalGC(append([]string{"repair", "--cni-dir", n.path("cni/conf"), n.runtime(), kernel, cache}, flags...)...)
			same(t, "exit status of repair", string(out)+stderr, status, got)
			return stderr
		}
		repair(0)
		same(t, "reservations", "this was a plan", nil, n.reservations())
		repair(0, "--yes")
		same(t, "files", "as host-local wrote them", before, n.files(live...))
		live = append(live, n.runSome("late", size-running)...)
		n.wantHeld("new pods have other addresses", live...)
		same(t, "released", "all are live", nil, n.pass(n.runtime()).released)
		n.wantHeld("after a pass", live...)

		before = n.files(live...)
		n.must(os.RemoveAll(filepath.Join(networks, n.network)))
		taker := n.run("taker")
		same(t, "addresses of a new pod", "host-local starts with the first address", live[0].ips, taker.ips)
		stderr := repair(1, "--yes")
		for _, ip := range taker.ips {
			if !strings.Contains(stderr, ", by "+taker.id[:12]+"\n  ") || !strings.Contains(stderr, "  "+ip.String()+" ") {
				t.Errorf("repair says %q of %v, which another pod has", stderr, ip)
			}
		}
		maps.Copy(before, n.files(taker))
		same(t, "files", "as host-local wrote them, but for those that another pod has", before, n.files(live...))
		n.ours("all files of %d live pods are back, and other pods get other addresses", running)
	})
}

// files returns the content of the files of pods.
func (n *node) files(pods ...pod) map[string]string {
	n.t.Helper()
	all := make(map[string]string)
	for _, ip := range addressesOf(pods) {
		text, err := os.ReadFile(n.reservationFile(ip))
		n.must(err)
		all[ip.String()] = string(text)
	}
	return all
}

// wantFinding checks the exit status and the first finding of `hostlocal-gc check`.
func (n *node) wantFinding(want int, word, more string) {
	n.t.Helper()
	status, out, stderr := n.hostlocalGC("check", "--network", n.network, "--cni-dir", n.path("cni/conf"), n.runtime(), kernel, cache)
	first, _, _ := strings.Cut(string(out), "\n")
	if status != want || !strings.HasPrefix(first, word+": ") || !strings.Contains(first, more) {
		n.t.Errorf("hostlocal-gc check: exit status %d, %s%s, want %d with %q and %q in the first line", status, out, stderr, want, word, more)
	}
}

// Pods of Kubernetes and containers of nerdctl share a network. The valid attachments of one runtime do not include
// those of the other, so a GC of either releases addresses of live containers.
func TestIncident_cni1086(t *testing.T) {
	const each = 2
	n := newNode(t, current(), withPool(4*each))
	n.forClients()
	n.runAgent()
	pods := n.runSome("live", each)
	var containers, ended []pod
	for i := range each {
		containers = append(containers, n.runByNerdctl(fmt.Sprint("alive-", i)).pod)
		ended = append(ended, n.endedByNerdctl(fmt.Sprint("ended-", i)))
	}
	gone := n.runSome("gone", each)
	n.leak(gone...)
	live, dead := append(pods, containers...), append(gone, ended...)
	n.wantFull("with the pool full of leaks")
	freed := n.collectGarbage(pods...)
	same(t, "freed by libcni's GC with the pods as valid", "the containers are not among them",
		verdicts("", addressesOf(append(dead, containers...))...), verdicts("", freed...))
	n.alone("libcni's GC with the pods as valid frees %d addresses, among them all of the %d live containers", len(freed), each)
	p := n.pass(n.runtime())
	n.wantReleased("no-del", "neither runtime runs their containers", holding(dead...), p)
	n.wantLeft("of both runtimes", append(live, n.runSome("web", len(dead))...)...)
	n.ours("%d leaked addresses of both runtimes released, all live ones keep theirs, %d pods start", len(p.released), len(dead))
}

// endedByNerdctl runs a container that ends, and keeps its addresses.
func (n *node) endedByNerdctl(name string) pod {
	n.t.Helper()
	c := n.runByNerdctl(name)
	_, err := n.nerdctl("kill", name)
	n.must(err)
	return c.pod
}

// installInPlace installs the IPAM plugin of examples/ipam in place of host-local, as described in its README.
func (n *node) installInPlace() {
	n.t.Helper()
	n.must(os.Rename(n.path("cni/bin/host-local"), n.path("cni/bin/host-local.real")))
	n.link("ipam", "cni/bin/host-local")
}

// Containers of nerdctl that have ended keep their addresses until they are removed. After a power loss the start of
// a container fails, since an address is reserved for it. The IPAM plugin in host-local's place runs a pass when an
// ADD fails.
func TestIncident_nerdctl1259(t *testing.T) {
	const size = 4
	t.Run("containers end", func(t *testing.T) {
		onEach(t, func(t *testing.T, n *node) {
			n.forClients()
			live := []pod{n.runByNerdctl("live").pod}
			for i := range size - 1 {
				n.endedByNerdctl(fmt.Sprint("ended-", i))
			}
			full := n.reservations()
			_, err := n.tryRunByNerdctl("refused")
			n.wantErr("nerdctl run", noAddress, err)
			n.restart()
			_, err = n.tryRunByNerdctl("refused-again")
			n.wantErr("nerdctl run after a restart of containerd", noAddress, err)
			same(t, "reservations", "no DEL was called", full, n.reservations())
			n.alone("no container runs, also after a restart; libcni's GC would free %d addresses, but nobody calls it", len(n.collectGarbage(live...)))

			n.makeOld(10 * time.Second)
			ended := n.heldBy(otherContainers(full, live...)...)
			same(t, "causes", "no DEL was called", verdicts("no-del", ended...), n.only("plan", inSeconds...).causes)
			n.age()
			n.installInPlace()
			for i := range size - 1 {
				live = append(live, n.runByNerdctl(fmt.Sprint("new-", i)).pod)
			}
			n.wantLeft("those of ended containers were released when an ADD needed them", live...)
			n.age()
			_, err = n.tryRunByNerdctl("one-too-many")
			n.wantErr("nerdctl run on a pool of live containers", noAddress, err)
			n.wantLeft("all containers are live", live...)
			n.ours("%d new containers run on the same pool, the live one keeps its addresses", size-1)
		}, withPool(size))
	})
	t.Run("power loss", func(t *testing.T) {
		onEach(t, func(t *testing.T, n *node) {
			n.forClients()
			alone, healed := n.runByNerdctl("alone").pod, n.runByNerdctl("healed").pod
			asking, err := n.tryRunByNerdctl("asking", "--ip", "10.88.0.77")
			n.must(err)
			n.reboot(false)
			n.beforeBoot()
			dead := slices.Collect(maps.Keys(n.reservations()))
			same(t, "causes", "the power failed", verdicts("reboot", dead...), n.only("plan", inSeconds...).causes)
			n.makeOld(0)
			n.start()
			_, err = n.nerdctl("start", alone.name)
			n.wantErr("nerdctl start", twice, err)
			n.wantLeft("the failed start called DEL for its own container", healed, asking.pod)
			n.must(removeBridges()) // after a failed ADD it has no MAC address

			n.installInPlace()
			for _, name := range []string{healed.name, asking.name} {
				_, err := n.nerdctl("start", name)
				n.must(err)
			}
			after := n.holder(asking.name, asking.id)
			same(t, "address", "requested with --ip again", asking.ips[:1], after.ips[:1])
			n.wantLeft("the old reservations are released", n.holder(healed.name, healed.id), after)
			n.ours("the first start succeeds, where it fails with host-local alone")
		})
	})
}

// Nomad makes the network of an allocation with the allocation's ID. After a reboot it does so again, in a new
// namespace and without a DEL, while host-local has an address for that ID. Nomad tries three times. In this test a
// small client makes Nomad's calls of go-cni.
func TestIncident_nomad11272(t *testing.T) {
	allocations := []string{"5f1bb0a4-2f0b-5d5a-b1a4-8c1f5e1e0b01", "5f1bb0a4-2f0b-5d5a-b1a4-8c1f5e1e0b02"}
	rebooted := func(t *testing.T) (n *node, dead []pod) {
		t.Helper()
		n = newNode(t, current())
		n.forClients()
		for _, id := range allocations {
			dead = append(dead, n.runByGocni(id).pod)
		}
		n.reboot(false)
		return n, dead
	}
	again := func(n *node) {
		n.t.Helper()
		var live []pod
		for _, id := range allocations {
			live = append(live, n.runByGocni(id).pod)
		}
		n.wantLeft("one of each family for each allocation", live...)
		n.pass()
		n.wantLeft("after a pass the allocations live", live...)
		n.ours("the first ADD of each of %d allocations succeeds", len(live))
	}
	t.Run("alone", func(t *testing.T) {
		n, dead := rebooted(t)
		for _, id := range allocations {
			_, err := n.tryRunByGocni(id)
			n.wantErr("the first ADD of "+id, twice, err)
			for range 2 {
				_, err := n.tryRunByGocni(id)
				n.wantErr("a later ADD of "+id, "", err) // bridge finds its interface in the namespace
			}
		}
		n.wantLeft("no DEL was called", dead...)
		n.alone("3 ADDs of each allocation fail; libcni's GC would free %d addresses, but Nomad does not call it", len(n.collectGarbage()))
	})
	t.Run("a pass before Nomad starts", func(t *testing.T) {
		n, dead := rebooted(t)
		n.beforeBoot()
		n.wantReleased("reboot", "their namespaces are gone", holding(dead...), n.only("release", inSeconds...))
		again(n)
	})
	t.Run("the IPAM plugin", func(t *testing.T) {
		n, _ := rebooted(t)
		n.start()
		n.runAgent() // process 1 is not that of a machine, so its containers show that this is a node
		n.installInPlace()
		again(n)
	})
}
