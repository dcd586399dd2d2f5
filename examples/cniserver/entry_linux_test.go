// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// The entry has the addresses of the result and the pod of CNI_ARGS, or the ADD fails.
func TestEntryOf(t *testing.T) {
	ip := func(text string) *types100.IPConfig {
		return &types100.IPConfig{Address: net.IPNet{IP: net.ParseIP(text)}}
	}
	r := request{ContainerID: "a", IfName: "eth0", NetNS: "/run/netns/a", Args: "X=y;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=1"}
	got, err := entryOf(&r, &delegation{network: "one"}, &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{ip("10.9.1.2"), ip("fd00::2")}})
	want := checkpoint.Entry{
		Key: checkpoint.Key{Network: "one", ContainerID: "a", IfName: "eth0"}, NetNS: checkpoint.NetNS{Path: "/run/netns/a"},
		IPs: []netip.Addr{netip.MustParseAddr("10.9.1.2"), netip.MustParseAddr("fd00::2")},
		Pod: apitypes.NamespacedName{Namespace: "shop", Name: "web"}, UID: "1",
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, row := range []struct {
		reason, args string
		result       types100.Result
	}{
		{"an unknown version", "", types100.Result{CNIVersion: "9.9"}},
		{"an invalid address", "", types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{ip("10.9.1.2"), ip("x")}}},
		{"invalid arguments", "K8S_POD_NAME", types100.Result{CNIVersion: "1.1.0"}},
	} {
		r.Args = row.args
		if e, err := entryOf(&r, &delegation{network: "one"}, &row.result); err == nil {
			t.Errorf("%s: no error, but %+v", row.reason, e)
		}
	}
}

// An ADD whose result is incomplete fails, and is neither recorded nor left unfinished.
func TestADDWithAnIncompleteResult(t *testing.T) {
	n := newNode(t)
	n.ownBin("cniserver", "host-local")
	script := "#!/bin/sh\n[ $CNI_COMMAND = DEL ] || echo '{\"cniVersion\":\"1.1.0\",\"ips\":[{}]}'\n"
	if err := os.WriteFile(filepath.Join(n.bin, "bridge"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n.Make("c")
	if _, err := n.newServer().handle(t.Context(), n.request("ADD", "c")); err == nil || !strings.Contains(err.Error(), "is not an address") {
		t.Errorf("got %v", err)
	}
	n.agree(2)
}
