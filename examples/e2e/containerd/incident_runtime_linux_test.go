// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// Incidents of containerd, its libraries and plugins.

// A plugin of a chain fails in ADD, and again in DEL, which calls the plugins in reverse order: the plugin that has
// the address is not called. containerd removes its record of the sandbox.
func TestIncident_containerd12130(t *testing.T) {
	n := newNode(t, current(), withPool(8), chained)
	n.runAgent()
	live := n.runSome("live", 2)
	n.tellToFail("chained-", "victim")
	same(t, "retries", "each has leaked the addresses of one container", 6, n.retries("victim"))
	n.untellToFail("chained-", "victim") // the plugin works again
	n.endOutage(live, "no-entry", "its cache has no entry of a chain that failed")
}

// The ADD is slow. kubelet's deadline ends the call and the plugin, after its IPAM. The DEL fails, too, and
// containerd 2 removes its record of the sandbox.
func TestIncident_containerd5768(t *testing.T) {
	const running = 2
	onEach(t, func(t *testing.T, n *node) {
		n.runAgent()
		live := n.runSome("live", running)
		if n.name == current().name {
			n.timeOut("victim", n.pool-running)
			n.endOutage(live, "no-entry", "its cache has no entry of an ADD that was ended")
			return
		}
		n.timeOut("victim", 1)
		for _, id := range otherContainers(n.reservations(), live...) {
			n.wantState(id, notReady, "its DEL must be repeated")
			n.remove(id)
		}
		n.wantLeft("the stop called DEL", live...)
		n.alone("containerd 1.6 lists the sandbox, and a later stop frees its addresses")
	}, withPool(5))
}

// timeOut runs a pod several times, with an ADD that is slower than the call's deadline, and a DEL that fails. Then
// the plugin is fast again.
func (n *node) timeOut(name string, times int) {
	n.t.Helper()
	n.tell("DEL", name, "fail")
	for i := range times {
		c := n.runHeld("ADD", name)
		c.cancel()
		<-c.done
		n.await("containerd to end the call", func(context.Context) error {
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

// The power fails before the disk has libcni's entries: their files exist, and are empty. With libcni before 1.2
// every DEL then fails, for ever. The runtime lists these sandboxes for ever, so it can't be a source here.
func TestIncident_cni1055(t *testing.T) {
	const size, said = 4, "unexpected end of JSON input"
	onEach(t, func(t *testing.T, n *node) {
		n.runAgent()
		old := n.runSome("web", size)
		n.reboot(false)
		for _, p := range old {
			n.must(os.Truncate(n.cacheFile(p), 0))
		}
		n.start()
		if n.name == current().name {
			for _, p := range old {
				n.remove(p.id)
			}
			n.wantLeft("libcni 1.2 does the DEL without the entry")
			return
		}
		for _, p := range old {
			n.wantErr("stopping "+p.name, said, n.tryStop(t.Context(), p.id))
		}
		n.wantFullForGood("it skips entries that it can't read")
		n.must(removeBridges()) // after a failed ADD a bridge without ports has no MAC address, and every ADD fails

		n.beforeBoot()
		same(t, "plan with the runtime", "it lists the sandboxes", verdicts(gc.InUse, addressesOf(old)...), n.plan(inSeconds...).verdicts)
		same(t, "released at once", "an entry that can't be read may be of a container that lives", nil, n.only("release", inSeconds...).released)
		n.ageMemory(gc.DefaultMinAge)
		p := n.only("release", inSeconds...)
		n.wantReleased("torn", "they are from before the boot, and were first seen seven minutes ago", holding(old...), p)
		live := n.runSome("new", size)
		same(t, "released by the next pass", "live pods have them", nil, n.only("release", inSeconds...).released)
		n.wantHeld("after the next pass", live...)
		n.ours("without the runtime as a source %d leaked addresses released, %d pods start", len(p.released), size)
	}, withPool(size))
}

// The power fails, and containerd's records are lost. No DEL is called for its sandboxes.
func TestIncident_microk8s5267(t *testing.T) {
	const size = 6
	n := newNode(t, current(), withPool(size))
	dead := n.runSome("before", size)
	n.reboot(true)
	n.start()
	n.importImage()
	n.runAgent()
	n.wantFull("after the power loss")
	n.restart()
	n.wantFull("after a restart of containerd")
	n.alone("all %d addresses stay reserved; libcni's GC would free %d, but containerd does not call it", 2*size, len(n.collectGarbage()))

	n.must(removeBridges())
	n.beforeBoot()
	p := n.only("release", append(inSeconds, n.runtime())...)
	n.wantReleased("reboot", "no sandbox, process, namespace or entry has them", holding(dead...), p)
	live := n.runSome("after", size)
	same(t, "released by the next pass", "live pods have them", nil, n.pass(n.runtime()).released)
	n.wantHeld("after the next pass", live...)
	n.ours("%d leaked addresses released, %d pods start and keep theirs", len(p.released), size)
}

// Multus passes the whole configuration of a conflist to a delegate in ADD, but in DEL only the parts that it
// decodes. So host-local gets no range, and fails. If the pod is gone from the API server, or Multus' own file of the
// pod is damaged, Multus reports success and does nothing.
func TestIncident_multuscni1449(t *testing.T) {
	const running, damaged = 1, 2
	n := newNode(t, current(), withPool(6))
	gone := n.behindMultus()
	n.runAgent()
	live := n.runSome("live", running)
	for i := range n.pool - running {
		p := n.run(fmt.Sprint("ended-", i))
		if i < damaged {
			n.must(os.Truncate(filepath.Join("/var/lib/cni/multus", p.id), 0))
		} else {
			n.wantErr("stopping "+p.name, "no IP ranges specified", n.tryStop(t.Context(), p.id))
			gone.Store(p.name, true)
		}
		n.remove(p.id)
	}
	n.endOutage(live, "no-del", "each DEL has succeeded for containerd's libcni, and Multus takes all entries of its own cache as valid",
		"--source=cnicache:"+multusResults)
}

// multusResults is the cache of Multus' libcni.
const multusResults = "/var/lib/cni/multus/results"

// behindMultus makes the pods' network one to which Multus delegates, with the file of a conflist. The API server of
// Multus is a server of the test, without the pods whose names are in gone. The CNI version is one with which
// libcni's GC calls plugins.
func (n *node) behindMultus() (gone *sync.Map) {
	n.t.Helper()
	gone, n.multus = new(sync.Map), true
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(strings.TrimSuffix(r.URL.Path, "/status")) // /api/v1/namespaces/NAMESPACE/pods/NAME, and /status below it
		w.Header().Set("Content-Type", "application/json")
		if _, ok := gone.Load(name); ok {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":%q,"name":%q,"uid":%q}}`, namespace, name, "uid-"+name)
	}))
	n.t.Cleanup(api.Close)
	n.must(os.Symlink(n.tool("multus"), n.path("cni/bin/multus")))
	kubeconfig, delegate := n.path("multus.kubeconfig"), n.path("pods.conflist")
	n.must(os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"here",
		"contexts":[{"name":"here","context":{"cluster":"here","user":"me"}}],"users":[{"name":"me","user":{}}],
		"clusters":[{"name":"here","cluster":{"server":%q}}]}`, api.URL), 0o600))
	n.must(os.Rename(n.path("cni/conf/10-pods.conflist"), delegate))
	n.writeList("00-multus", "multus", "1.1.0", map[string]any{"type": "multus", "kubeconfig": kubeconfig, "clusterNetwork": delegate})
	n.awaitNetwork("multus")
	return gone
}

// After a reboot the network namespaces of all pods are gone, and the runtime calls DEL without one. The plugin
// host-device then reports success and does not call host-local.
func TestIncident_plugins1196(t *testing.T) {
	n := newNode(t, current(), withPool(3))
	device := n.onDevice()
	var ended []pod
	for i := range n.pool { // there is one device, so one pod at a time
		device()
		p := n.run(fmt.Sprint("web-", i))
		n.reboot(false)
		n.start()
		n.remove(p.id)
		ended = append(ended, p)
	}
	n.wantLeft("each DEL succeeded, and none called host-local", ended...)
	n.runAgent()
	device()
	n.wantFullForGood("each DEL succeeded, so the cache has no entry")

	n.beforeBoot()
	n.release() // notes when they were first seen
	n.ageMemory(gc.DefaultMinAge)
	p := n.release()
	n.wantReleased("reboot", "no sandbox has them", holding(ended...), p)
	device()
	live := n.run("after")
	n.age()
	same(t, "released by the next pass", "a live pod has them", nil, n.release().released)
	n.wantHeld("after the next pass", live)
	n.ours("with the runtime %d of %d leaked addresses released, the pod starts and keeps its own", len(p.released), 2*n.pool)
}

// onDevice makes the pods' network one of the plugin host-device. It returns a function that makes the device again
// if it was removed with a namespace, like a driver at boot. The device is one end of a veth pair.
func (n *node) onDevice() (device func()) {
	n.t.Helper()
	const name = "dev0"
	n.link("host-device", "cni/bin/host-device")
	n.main = map[string]any{"type": "host-device", "device": name}
	n.configure(n.network)
	n.awaitNetwork("host-device")
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
	n.t.Cleanup(func() { _ = netlink.LinkDel(pair) }) // a pod may have had it
	return func() {
		n.t.Helper()
		n.await("the device "+name, func(context.Context) error { // its peer is removed a little later than the namespace
			if _, err := netlink.LinkByName(name); err == nil {
				return nil
			}
			if err := netlink.LinkAdd(pair); err != nil {
				return err
			}
			peer, err := netlink.LinkByName(pair.PeerName)
			return errors.Join(err, netlink.LinkSetUp(peer)) // otherwise the plugin waits for a carrier
		})
	}
}
