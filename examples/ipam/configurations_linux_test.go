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
	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A configuration is one of README's, with what it is for.
type configuration struct {
	main         string // its main plugin
	network      string // the network of its addresses
	behindMultus bool   // it is the content of a NetworkAttachmentDefinition
	setUp        func(*testNode) error
}

// TestConfigurationsOfREADME runs each configuration of README with other directories. On a /24
// full of leaks host-local alone finds no address, and with the plugin an ADD succeeds. The live
// container keeps its address.
func TestConfigurationsOfREADME(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```json\n([^`]*?\"cniVersion\".*?)```").FindAllStringSubmatch(mustRead(t, "README.md"), -1)
	rows := []configuration{ // in README's order
		{main: "bridge", network: "podnet"},
		{main: "flannel", network: "cbr0", setUp: func(n *testNode) error { // as flannel's daemon does, with its own iptables rules
			n.write("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.8.0.0/16\nFLANNEL_SUBNET=10.8.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", 0)
			return nil
		}},
		{main: "macvlan", network: "storage", behindMultus: true, setUp: func(*testNode) error {
			eth1 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "eth1-far"}
			return errors.Join(netlink.LinkAdd(eth1), netlink.LinkSetUp(eth1))
		}},
	}
	if len(blocks) != len(rows) {
		t.Fatalf("README has %d configurations, and %d are tried", len(blocks), len(rows))
	}
	for i, c := range rows {
		t.Run(c.main, func(t *testing.T) { c.try(t, blocks[i][1]) })
	}
}

func (c configuration) try(t *testing.T, block string) {
	n := newTestNode(t)
	cnitest.RemoveLinkAtEnd(t, "cni0")
	cnitest.RemoveLinkAtEnd(t, "eth1")
	t.Cleanup(func() {
		if err := os.RemoveAll("/var/lib/cni"); err != nil { // the files of flannel and Multus
			t.Error(err)
		}
	})
	if c.setUp != nil {
		if err := c.setUp(n); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(n.dataDir(), c.network)
	add := func(id string, list *libcni.NetworkConfigList) (ip netip.Addr, err error) {
		n.Make(id)
		_, err = n.cni.AddNetworkList(context.Background(), list, n.of(id))
		for _, ip = range n.Addresses(id) { // behind Multus it also has one of another network
			if cnitest.Exists(filepath.Join(dir, ip.String())) {
				return ip, err
			}
		}
		return netip.Addr{}, errors.Join(err, fmt.Errorf("%s has no reserved address of network %s", id, c.network))
	}
	alone, list := c.listOf(n, block, "host-local"), c.listOf(n, block, "hostlocal-gc-ipam")
	live, err := add("live", list)
	if err != nil {
		t.Fatal(err)
	}
	for i, ip := 0, live; i < addresses; i, ip = i+1, ip.Next() {
		if file := filepath.Join(dir, ip.String()); !cnitest.Exists(file) {
			n.write(file, sandbox(fmt.Sprint("gone", i))+"\r\neth0", old)
		}
	}
	cnitest.DateBack(n.t, filepath.Join(dir, live.String()), old)
	if _, err := add("control", alone); err == nil || !strings.Contains(err.Error(), noneLeft) {
		t.Errorf("the test is of no use: host-local alone says %v", err)
	}
	if err := n.cni.DelNetworkList(context.Background(), alone, n.of("control")); err != nil { // as runtimes do after a failed ADD
		t.Error(err)
	}
	ip, err := add("new", list)
	reserved := n.reserved()
	if err != nil || reserved[ip.String()] != "new" || reserved[live.String()] != "live" || !slices.Contains(n.Addresses("live"), live) {
		t.Errorf("%v: new has %v, and live %v: %v", err, ip, live, reserved)
	}
	if len(reserved) > 4 { // behind Multus each container also has one of another network
		t.Errorf("reservations are left: %v", reserved)
	}
	err = n.cni.DelNetworkList(context.Background(), list, n.of("new"))
	if err != nil || slices.Contains(slices.Collect(maps.Values(n.reserved())), "new") {
		t.Errorf("the DEL left the reservation: %v", err)
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
	return n.parse(text)
}
