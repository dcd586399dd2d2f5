// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A node is a directory with a data directory "networks", which host-local's own code fills, and
// files of pods. Commands run in it, so that flags and outputs do not depend on its path.
type node struct {
	t   *testing.T
	dir string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(n.dir, "networks"), 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

// A podNetwork is a network of a node, with the plugin that serves it.
type podNetwork struct {
	*node
	name   string
	store  *disk.Store
	ranges []*allocator.IPAllocator
}

// network makes a network with a range set for each subnet.
func (n *node) network(name string, subnets ...string) *podNetwork {
	n.t.Helper()
	store, err := disk.New(name, filepath.Join(n.dir, "networks"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = store.Close() })
	nw := &podNetwork{node: n, name: name, store: store}
	for i, subnet := range subnets {
		_, ipNet, err := net.ParseCIDR(subnet)
		if err != nil {
			n.t.Fatal(err)
		}
		set := &allocator.RangeSet{{Subnet: cnitypes.IPNet(*ipNet)}}
		if err := set.Canonicalize(); err != nil {
			n.t.Fatal(err)
		}
		nw.ranges = append(nw.ranges, allocator.NewIPAllocator(set, store, i))
	}
	return nw
}

// add reserves an address in each range with the plugin, and dates it back by age. It returns the
// addresses.
func (nw *podNetwork) add(containerID string, age time.Duration) []string {
	nw.t.Helper()
	var ips []string
	for _, r := range nw.ranges {
		got, err := r.Get(containerID, "eth0", nil)
		if err != nil {
			nw.t.Fatal(err)
		}
		ip, _ := netip.AddrFromSlice(got.Address.IP)
		ips = append(ips, ip.Unmap().String())
		nw.date(ips[len(ips)-1], age)
	}
	return ips
}

// file returns the path of an address's file.
func (nw *podNetwork) file(ip string) string {
	return disk.GetEscapedPath(filepath.Join(nw.dir, "networks", nw.name), ip)
}

func (nw *podNetwork) date(ip string, age time.Duration) {
	nw.t.Helper()
	cnitest.DateBack(nw.t, nw.file(ip), age)
}

// write replaces the content of an address's file, and keeps its age.
func (nw *podNetwork) write(ip, content string, age time.Duration) {
	nw.t.Helper()
	cnitest.Write(nw.t, nw.file(ip), content, age)
}

// there reports whether an address is reserved.
func (nw *podNetwork) there(ip string) bool { return cnitest.Exists(nw.file(ip)) }

// A pod has the JSON of the source file:PATH.
type pod struct {
	Namespace    string     `json:"namespace"`
	Name         string     `json:"name"`
	UID          string     `json:"uid,omitempty"`
	ContainerIDs []string   `json:"containerIDs,omitempty"`
	IPs          []string   `json:"ips,omitempty"`
	StartedAt    *time.Time `json:"startedAt,omitempty"`
	Finished     bool       `json:"finished,omitempty"`
	HostNetwork  bool       `json:"hostNetwork,omitempty"`
}

// pods writes a list of pods into the node's directory.
func (n *node) pods(name string, pods ...pod) {
	n.t.Helper()
	if pods == nil {
		pods = []pod{}
	}
	text, err := json.MarshalIndent(pods, "", "  ")
	if err != nil {
		n.t.Fatal(err)
	}
	n.put(name, string(text))
}

func (n *node) put(name, text string) {
	n.t.Helper()
	cnitest.Write(n.t, filepath.Join(n.dir, name), text, 0)
}

// sandbox makes up a sandbox ID, the same in every run.
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

func ago(d time.Duration) *time.Time {
	t := time.Now().Add(-d).UTC()
	return &t
}

const day = 24 * time.Hour
