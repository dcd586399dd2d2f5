// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// After a reboot the network namespaces of all pods are gone, and the runtime calls DEL without one.
// The plugin host-device then reports success and does not call host-local.
func TestIncident_plugins1196(t *testing.T) {
	const size = 3
	n := newNode(t, current(), func(n *node) { n.pool = size })
	device := n.onDevice()
	var ended []pod
	for i := range size { // there is one device, so one pod at a time
		device()
		p := n.run(fmt.Sprint("web-", i))
		n.reboot(false)
		n.start()
		n.remove(p.id)
		ended = append(ended, p)
	}
	same(t, "reservations", "each DEL succeeded, and none called host-local", holding(ended...), n.reservations(n.network))
	n.runAgent()
	device()
	n.wantFull("after as many reboots as there are addresses")
	n.restart()
	device()
	n.wantFull("after a restart of containerd")
	freed := n.collectGarbage()
	same(t, "freed by libcni's GC", "each DEL succeeded, so the cache has no entry", nil, freed)

	n.age(n.network)
	p := n.release(n.network)
	same(t, "released", "no sandbox has them: "+p.String(), holding(ended...), p.released)
	device()
	live := n.run("after")
	n.age(n.network)
	same(t, "released by the next pass", "a live pod has them", nil, n.release(n.network).released)
	n.wantHeld("after the next pass", live)

	incident{
		Issues: []string{"containernetworking/plugins#1196"},
		Leak: "After a reboot the pods' network namespaces are gone, and the DEL of a pod is called without one. The plugin `host-device` reports success " +
			"and does not call its IPAM: one address (of each family) for each pod that a reboot ends.",
		Advice: "None. plugins#1197 is open.",
		Alone: fmt.Sprintf("%d reboots fill a pool of %d. Each pod is removed with success, and no pod starts, also after a restart of containerd. "+
			"libcni's GC succeeds and frees %d: the DELs removed its entries.", size, size, len(freed)),
		Ours: fmt.Sprintf("`hostlocal-gc release` with the source `cri`: %d of %d leaked addresses released, the pod starts and keeps its own in the next pass.",
			len(p.released), 2*size),
		Versions: append(n.versions("host-device", "host-local", "containerd", "containerd:github.com/containernetworking/cni"), "one end of a veth pair as its device"),
	}.report(t)
}

// onDevice makes the pods' network one of the plugin host-device. It returns a function that makes
// the device again if it was removed with a namespace, like a driver at boot.
func (n *node) onDevice() (device func()) {
	n.t.Helper()
	const name = "dev0"
	n.must(os.Symlink(filepath.Join(os.Getenv(binEnv), "host-device"), n.path("cni/bin/host-device")))
	n.configure("devices")
	file := n.path("cni/conf/10-pods.conflist")
	text, err := os.ReadFile(file)
	n.must(err)
	var list struct {
		CNIVersion string           `json:"cniVersion"`
		Name       string           `json:"name"`
		Plugins    []map[string]any `json:"plugins"`
	}
	n.must(json.Unmarshal(text, &list))
	list.Plugins = []map[string]any{{"type": "host-device", "device": name, "ipam": list.Plugins[0]["ipam"]}}
	text, err = json.MarshalIndent(list, "", "  ")
	n.must(errors.Join(err, os.WriteFile(file, text, 0o644)))
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
