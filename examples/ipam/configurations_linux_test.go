// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A configuration is one of README's, with what it is for.
type configuration struct {
	main         string // its main plugin
	network      string // the network of its addresses
	ifName       string // the interface with the addresses
	behindMultus bool   // it is the content of a NetworkAttachmentDefinition
	setUp        func(*testing.T)
}

// configurations returns those of README, in its order.
func configurations() []configuration {
	return []configuration{
		{main: "bridge", network: "podnet", ifName: "eth0"},
		{main: "flannel", network: "cbr0", ifName: "eth0", setUp: flannelSubnet},
		{main: "macvlan", network: "storage", ifName: "net1", behindMultus: true, setUp: secondInterface},
	}
}

// TestConfigurationsOfREADME runs each configuration of README with other directories. On a /24
// full of leaks host-local alone finds no address, and with the plugin an ADD succeeds. The live
// container keeps its address.
func TestConfigurationsOfREADME(t *testing.T) {
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(readmeText(t), -1) {
		if strings.Contains(m[1], `"cniVersion"`) {
			blocks = append(blocks, m[1])
		}
	}
	all := configurations()
	if len(blocks) != len(all) {
		t.Fatalf("README has %d configurations, and %d are tried", len(blocks), len(all))
	}
	for i, c := range all {
		t.Run(c.main, func(t *testing.T) { c.try(t, blocks[i]) })
	}
}

func (c configuration) try(t *testing.T, block string) {
	n := newTestNode(t)
	t.Cleanup(func() {
		removeLinks(t, "cni0", "eth1")
		if err := os.RemoveAll("/var/lib/cni"); err != nil { // the files of flannel and Multus
			t.Error(err)
		}
	})
	if c.setUp != nil {
		c.setUp(t)
	}
	n.Make("live")
	n.Make("control")
	n.Make("new")
	if err := n.addListed("live", c.listOf(n, block, "hostlocal-gc-ipam")); err != nil {
		t.Fatal(err)
	}
	live := addressOn(t, "live", c.ifName)
	dir := filepath.Join(n.dataDir(), c.network)
	for i, ip := 0, live; i < addresses; i, ip = i+1, ip.Next() {
		if file := filepath.Join(dir, ip.String()); !cnitest.Exists(file) {
			n.write(file, sandbox(fmt.Sprint("gone", i))+"\r\neth0", old)
		}
	}
	cnitest.DateBack(n.t, filepath.Join(dir, live.String()), old)

	alone := c.listOf(n, block, "host-local")
	if err := n.addListed("control", alone); err == nil || !strings.Contains(err.Error(), noneLeft) {
		t.Errorf("the test is of no use: host-local alone says %v", err)
	}
	if err := n.cni.DelNetworkList(context.Background(), alone, n.of("control")); err != nil { // as runtimes do after a failed ADD
		t.Error(err)
	}
	if err := n.addListed("new", c.listOf(n, block, "hostlocal-gc-ipam")); err != nil {
		t.Error(err)
	}
	reserved := n.reserved()
	for _, id := range []string{"live", "new"} {
		if ip := addressOn(t, id, c.ifName); reserved[ip.String()] != id {
			t.Errorf("%s has %v, which is reserved for %q", id, ip, reserved[ip.String()])
		}
	}
	if len(reserved) > 4 { // behind Multus each container also has one of another network
		t.Errorf("reservations are left: %v", reserved)
	}
	if err := n.cni.DelNetworkList(context.Background(), c.listOf(n, block, "hostlocal-gc-ipam"), n.of("new")); err != nil {
		t.Error(err)
	}
	if slices.Contains(slices.Collect(maps.Values(n.reserved())), "new") {
		t.Error("the DEL left the reservation")
	}
}

// listOf makes a runtime's configuration of a block of README, with the given IPAM plugin and the
// test's directories.
func (c configuration) listOf(n *testNode, block, ipam string) *libcni.NetworkConfigList {
	n.t.Helper()
	var conf map[string]any
	if err := json.Unmarshal([]byte(block), &conf); err != nil {
		n.t.Fatalf("%v in %s", err, block)
	}
	plugin := conf
	if plugins, ok := conf["plugins"].([]any); ok {
		plugin = plugins[0].(map[string]any)
	}
	settings, ok := plugin["ipam"].(map[string]any)
	if plugin["type"] != c.main || conf["name"] != c.network || !ok || settings["type"] != "hostlocal-gc-ipam" {
		n.t.Fatalf("not a configuration of %s for network %s: %s", c.main, c.network, block)
	}
	settings["type"], settings["dataDir"], settings["gc"] = ipam, n.dataDir(), json.RawMessage(n.gc)
	if c.behindMultus {
		conf = map[string]any{"cniVersion": "1.0.0", "name": "multus", "plugins": []any{map[string]any{
			"type": "multus", "delegates": []any{json.RawMessage(n.configOf("host-local")), conf}}}}
	}
	text, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

func (n *testNode) addListed(id string, list *libcni.NetworkConfigList) error {
	_, err := n.cni.AddNetworkList(context.Background(), list, n.of(id))
	return err
}

// flannelSubnet writes the file that flannel's daemon writes for its plugin: with flannel's own
// iptables rules, so that bridge makes none.
func flannelSubnet(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll("/run/flannel", 0o755); err != nil {
		t.Fatal(err)
	}
	env := "FLANNEL_NETWORK=10.8.0.0/16\nFLANNEL_SUBNET=10.8.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	if err := os.WriteFile("/run/flannel/subnet.env", []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
}

// secondInterface makes eth1 for macvlan.
func secondInterface(t *testing.T) {
	t.Helper()
	eth1 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "eth1-far"}
	if err := errors.Join(netlink.LinkAdd(eth1), netlink.LinkSetUp(eth1)); err != nil {
		t.Fatal(err)
	}
}

// addressOn returns the IPv4 address of an interface in a container's namespace.
func addressOn(t *testing.T, id, ifName string) (ip netip.Addr) {
	t.Helper()
	err := ns.WithNetNSPath("/run/netns/"+id, func(ns.NetNS) error {
		link, err := netlink.LinkByName(ifName)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil || len(addrs) != 1 {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		ip, _ = netip.AddrFromSlice(addrs[0].IP)
		return nil
	})
	if err != nil {
		t.Fatalf("asking the kernel for %s of %s: %v", ifName, id, err)
	}
	return ip.Unmap()
}
