// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// libcni calls the plugin as a runtime does, with each version and delegate.
func TestLibcni(t *testing.T) {
	for _, row := range []struct {
		reason string
		kind   kind
		each   int
	}{
		{"the newest version", kind{"1.1.0", "bridge", false}, 1},
		{"two addresses each", kind{"1.1.0", "bridge", true}, 2},
		{"the other delegate", kind{"1.1.0", "ptp", false}, 1},
		{"the other delegate, two addresses each", kind{"1.1.0", "ptp", true}, 2},
		{"results of version 1.0.0", kind{"1.0.0", "bridge", true}, 2},
		{"the oldest version that has CHECK", kind{"0.4.0", "ptp", true}, 2},
		{"the oldest version", kind{"0.3.1", "bridge", true}, 2},
	} {
		t.Run(strings.Join([]string{row.kind.version, row.kind.plugin, fmt.Sprint(row.each)}, " "), func(t *testing.T) {
			n := newNode(t)
			n.restart()
			list := n.list("one", row.kind)
			for _, id := range []string{"a", "b"} {
				if got := n.mustAdd(list, id); len(got) != row.each {
					t.Errorf("%s: ADD of %s gave %v", row.reason, id, got)
				}
			}
			n.agree(row.each, "a", "b")
			if e := n.recorded()[0]; e.Pod.String() != "shop/web-a" || e.UID != "uid-a" {
				t.Errorf("%s: the recorded pod is %v, UID %q", row.reason, e.Pod, e.UID)
			}
			if row.kind.version != "0.3.1" {
				if err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("a")); err != nil {
					t.Errorf("%s: CHECK: %v", row.reason, err)
				}
			}
			if row.kind.version == "1.1.0" {
				if err := n.cni.GetStatusNetworkList(t.Context(), list); err != nil {
					t.Errorf("%s: STATUS: %v", row.reason, err)
				}
			}
			n.mustDel(list, "a")
			n.agree(row.each, "b")
			n.mustDel(list, "a") // again, as kubelet does
			n.mustDel(list, "b")
			n.agree(row.each)
		})
	}
}

// CHECK fails if the interface is gone, and for a container without an ADD.
func TestCheck(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	for _, id := range []string{"0", "a"} { // a is the second one in the record
		n.mustAdd(list, id)
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("a")); err != nil {
		t.Errorf("CHECK fails: %v", err)
	}
	if _, err := unplumb("/run/netns/a", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("a")); err == nil {
		t.Error("the interface is gone, and CHECK succeeds")
	}
	n.Make("b")
	var e *types.Error
	err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("b"))
	if !errors.As(err, &e) || e.Code != types.ErrUnknownContainer {
		t.Errorf("CHECK without an ADD: %v", err)
	}
}

// Without a free address ADD and STATUS fail, until one is released.
func TestEmptyPool(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	small, err := libcni.NetworkConfFromBytes(bytes.Replace(list.Bytes, []byte("10.9.1.0/24"), []byte("10.9.1.0/29"), 1))
	if err != nil {
		t.Fatal(err)
	}
	other := n.reserve("three", "10.9.1.3", "x") // another network with the same range
	ids := []string{"a", "b", "c", "d", "e"}     // .1 is the gateway
	for _, id := range ids {
		if err := n.cni.GetStatusNetworkList(t.Context(), small); err != nil {
			t.Fatalf("STATUS before ADD of %s: %v", id, err)
		}
		n.mustAdd(small, id)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	var e *types.Error
	if err := n.cni.GetStatusNetworkList(t.Context(), small); !errors.As(err, &e) || e.Code != notAvailable {
		t.Errorf("STATUS of a full network: %v", err)
	}
	n.Make("f")
	if _, err := n.add(small, "f"); err == nil || !strings.Contains(err.Error(), "no IP addresses available") {
		t.Errorf("ADD in a full network: %v", err)
	}
	n.agree(1, ids...)
	n.mustDel(small, "c")
	n.mustAdd(small, "f")
	n.agree(1, "a", "b", "d", "e", "f")
}

// An ADD and a STATUS that find no free address trigger a pass, which the loop would do
// minutes later.
func TestFullPoolTriggersAPass(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	small, err := libcni.NetworkConfFromBytes(bytes.Replace(list.Bytes, []byte("10.9.1.0/24"), []byte("10.9.1.0/30"), 1))
	if err != nil {
		t.Fatal(err)
	}
	n.Make("a")
	for what, ask := range map[string]func() error{
		"ADD":    func() error { _, err := n.add(small, "a"); return err },
		"STATUS": func() error { return n.cni.GetStatusNetworkList(t.Context(), small) },
	} {
		leak := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.2", sandbox("gone"), time.Hour)
		if err := ask(); err == nil {
			t.Errorf("%s in a full network succeeds", what)
		}
		cnitest.Until(t, "the pass that "+what+" triggers has released the leak", func() bool { return !cnitest.Exists(leak) })
	}
	n.agree(1)
}

// The server refuses a request before its first step.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.Make("a")
	good := string(n.list("one", kind{"1.1.0", "bridge", false}).Bytes)
	for _, row := range []struct{ reason, old, new, want string }{
		{"a network that is not served", `"name":"one"`, `"name":"three"`, "--network three"},
		{"an unsupported delegate", `"type":"bridge"`, `"type":"macvlan"`, "bridge and ptp"},
		{"an unsupported IPAM plugin", `"type":"host-local"`, `"type":"dhcp"`, "host-local"},
		{"another data directory", n.dataDir(), n.dir + "/other", "dataDir"},
		{"rules that a DEL could not remove", `"isGateway":true`, `"ipMasq":true`, "ipMasq"},
		{"no delegate", `"delegate"`, `"delegates"`, "delegate"},
		{"a delegate of the wrong type", `"type":"bridge"`, `"type":7`, `reading the "delegate"`},
		{"no data directory, so that it is the default of host-local", fmt.Sprintf(`"dataDir":%q,`, n.dataDir()), "", hostlocal.DefaultDataDir},
	} {
		bad, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(good, row.old, row.new)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.add(bad, "a"); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
	r := &request{Command: "ADD", ContainerID: "../a", IfName: "eth0", Path: n.bin, Config: []byte(n.plugin("one"))}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "containerID") {
		t.Errorf("an invalid container ID: %v", err)
	}
	r = &request{Command: "X", ContainerID: "a", IfName: "eth0", Path: n.bin, Config: []byte(n.plugin("one"))}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "CNI_COMMAND") {
		t.Errorf("an unknown command: %v", err)
	}
	r = &request{Command: "DEL", ContainerID: "a", IfName: "a/b", Path: n.bin, Config: []byte(n.plugin("one"))}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "interface name") {
		t.Errorf("an invalid interface name: %v", err)
	}
	r = &request{Command: "ADD", ContainerID: "a", IfName: "eth0", Path: n.bin, Args: strings.Repeat("x", maxRequest), Config: []byte("{}")}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a request that is too large: %v", err)
	}
	n.agree(1)
	if info, err := os.Stat(n.socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the socket is %v, %v", info.Mode(), err)
	}
}

// plugin is the configuration of a network in the form in which the plugin gets it.
func (n *node) plugin(name string) string {
	inner := string(n.list(name, dual).Plugins[0].Bytes)
	return strings.Replace(inner, "{", fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,`, name), 1)
}

// Requests for one container run one at a time, in any order.
func TestOneRequestAtATimePerContainer(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", true})
	n.Make("a")
	done := make(chan error)
	for range 4 {
		go func() { _, err := n.add(list, "a"); done <- err }()
		go func() { done <- n.del(list, "a") }()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	h := n.holding()
	if diff := cmp.Diff(h.Reserved, h.Configured); diff != "" || len(h.Reserved) > 2 {
		t.Errorf("reserved (-), configured (+): %v\n%s", h.Reserved, diff)
	}
	n.mustDel(list, "a")
	n.agree(2)
}

// gcNow does a GC with a list of valid containers.
func (n *node) gcNow(list *libcni.NetworkConfigList, ids ...string) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range ids {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	return n.cni.GCNetworkList(n.t.Context(), list, args)
}

// removeCache removes libcni's cache of attachments: with it, libcni does a DEL for each
// invalid one before the plugin's GC.
func (n *node) removeCache() {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.dir, "cache")); err != nil {
		n.t.Fatal(err)
	}
}

// GC detaches the attachments that are no longer valid, in its network and no other.
func TestGC(t *testing.T) {
	for _, cached := range []string{"with libcni's cache", "without it"} {
		t.Run(cached, func(t *testing.T) {
			n := newNode(t)
			n.restart()
			one, two := n.list("one", kind{"1.1.0", "bridge", true}), n.list("two", kind{"1.1.0", "ptp", true})
			for _, id := range []string{"a", "b", "c"} {
				n.mustAdd(one, id)
			}
			n.mustAdd(two, "d")
			if cached == "without it" {
				n.removeCache()
			}
			off, err := libcni.NetworkConfFromBytes(bytes.Replace(one.Bytes, []byte("{"), []byte(`{"disableGC":true,`), 1))
			if err != nil {
				t.Fatal(err)
			}
			if err := n.gcNow(off); err != nil {
				t.Fatal(err)
			}
			n.agree(2, "a", "b", "c", "d")
			if err := n.gcNow(one, "a", "c"); err != nil {
				t.Fatal(err)
			}
			n.agree(2, "a", "c", "d")
			if err := n.gcNow(one); err != nil { // nothing is valid
				t.Fatal(err)
			}
			n.agree(2, "d")
			if err := n.gcNow(two, "d"); err != nil {
				t.Fatal(err)
			}
			n.agree(2, "d")
		})
	}
}

// A GC without a list of valid attachments is an error, and releases no address.
func TestHazard27GCWithoutTheList(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", true})
	n.mustAdd(list, "a")
	n.removeCache()
	if err := n.cni.GCNetworkList(t.Context(), list, nil); err == nil {
		t.Error("a GC without a list succeeds")
	}
	n.agree(2, "a")
}

// cnitool is a runtime, too. Its GC has no list of valid attachments.
func TestCnitool(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	conf := filepath.Join(n.dir, "conf")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "one.conflist"), list.Bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Make("a")
	tool := func(verb string) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(cnitest.Bin(), "cnitool"), verb, "one", "/run/netns/a")
		cmd.Env = append(os.Environ(), "CNI_PATH="+n.bin, "NETCONFPATH="+conf)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	for _, verb := range []string{"add", "check", "status"} {
		if err := tool(verb); err != nil {
			t.Fatalf("cnitool %s: %v", verb, err)
		}
	}
	if got := n.holding(); len(got.Reserved) != 1 || len(got.Configured) != 1 {
		t.Errorf("after cnitool add: %v", got)
	}
	// libcni does a DEL for its attachments, and then a GC without a list (hazard 27).
	if err := tool("gc"); err == nil || !strings.Contains(err.Error(), "cni.dev/valid-attachments") {
		t.Errorf("cnitool gc: %v", err)
	}
	n.agree(1)
	if err := tool("del"); err != nil {
		t.Fatalf("cnitool del: %v", err)
	}
	n.agree(1)
}
