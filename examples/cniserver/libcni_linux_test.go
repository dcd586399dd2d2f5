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

// libcni drives the plugin as a runtime does, in each version and kind.
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
				t.Errorf("%s: recorded is the pod %v, UID %q", row.reason, e.Pod, e.UID)
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

// CHECK says what is wrong: an interface that is gone, a container that nobody
// added.
func TestCheck(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	for _, id := range []string{"0", "a"} { // of which the second one is looked for
		n.mustAdd(list, id)
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("a")); err != nil {
		t.Errorf("nothing is wrong, and CHECK says %v", err)
	}
	if _, err := unplumb("/run/netns/a", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("a")); err == nil {
		t.Error("the interface is gone, and CHECK sees nothing")
	}
	n.Make("b")
	var e *types.Error
	err := n.cni.CheckNetworkList(t.Context(), list, n.runtimeConf("b"))
	if !errors.As(err, &e) || e.Code != types.ErrUnknownContainer {
		t.Errorf("nobody added b, and CHECK says %v", err)
	}
}

// An empty pool is said by ADD and by STATUS, and a freed address helps.
func TestEmptyPool(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	small, err := libcni.NetworkConfFromBytes(bytes.Replace(list.Bytes, []byte("10.9.1.0/24"), []byte("10.9.1.0/29"), 1))
	if err != nil {
		t.Fatal(err)
	}
	other := n.reserve("three", "10.9.1.3", "x") // another network's, that has the same range
	ids := []string{"a", "b", "c", "d", "e"}     // .1 is the gateway's
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

// An ADD that finds no address, and STATUS that sees that there is none, call for a
// pass, which the loop would do minutes later.
func TestFullPoolTriggersAPass(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", false})
	small, err := libcni.NetworkConfFromBytes(bytes.Replace(list.Bytes, []byte("10.9.1.0/24"), []byte("10.9.1.0/30"), 1))
	if err != nil {
		t.Fatal(err)
	}
	n.Make("a")
	cnitest.Until(t, "the loop has done its first pass, after that of the start", func() bool {
		return strings.Count(n.log.String(), `msg="Compared reservations with live pods"`) == 2
	})
	for what, ask := range map[string]func() error{
		"ADD":    func() error { _, err := n.add(small, "a"); return err },
		"STATUS": func() error { return n.cni.GetStatusNetworkList(t.Context(), small) },
	} {
		leak := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.2", "gone", time.Hour)
		if err := ask(); err == nil {
			t.Errorf("%s in a full network succeeds", what)
		}
		cnitest.Until(t, "the pass that "+what+" calls for has released the leak", func() bool { return !cnitest.Exists(leak) })
	}
	n.agree(1)
}

// What the server refuses, it refuses before anything was done.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.Make("a")
	good := string(n.list("one", kind{"1.1.0", "bridge", false}).Bytes)
	for _, row := range []struct{ reason, old, new, want string }{
		{"a network that nobody watches", `"name":"one"`, `"name":"three"`, "--network three"},
		{"a delegate that it can't undo", `"type":"bridge"`, `"type":"macvlan"`, "bridge and ptp"},
		{"an IPAM plugin that it does not know", `"type":"host-local"`, `"type":"dhcp"`, "host-local"},
		{"a data dir that it does not watch", n.dataDir(), n.dir + "/other", "dataDir"},
		{"rules that a DEL may not find", `"isGateway":true`, `"ipMasq":true`, "ipMasq"},
		{"no delegate", `"delegate"`, `"delegates"`, "delegate"},
		{"a delegate that is none", `"type":"bridge"`, `"type":7`, `reading the "delegate"`},
		{"no data dir, so that it is host-local's own", fmt.Sprintf(`"dataDir":%q,`, n.dataDir()), "", hostlocal.DefaultDataDir},
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
		t.Errorf("an ID that no runtime has: %v", err)
	}
	r = &request{Command: "X", ContainerID: "a", IfName: "eth0", Path: n.bin, Config: []byte(n.plugin("one"))}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "CNI_COMMAND") {
		t.Errorf("a command that CNI does not have: %v", err)
	}
	r = &request{Command: "DEL", ContainerID: "a", IfName: "a/b", Path: n.bin, Config: []byte(n.plugin("one"))}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "interface name") {
		t.Errorf("a name that no interface has: %v", err)
	}
	r = &request{Command: "ADD", ContainerID: "a", IfName: "eth0", Path: n.bin, Args: strings.Repeat("x", maxRequest), Config: []byte("{}")}
	if _, err := send(n.socket(), r); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a request of over a megabyte: %v", err)
	}
	n.agree(1)
	if info, err := os.Stat(n.socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is for others too: %v, %v", info.Mode(), err)
	}
}

// plugin is the configuration that the plugin gets of a network.
func (n *node) plugin(name string) string {
	inner := string(n.list(name, dual).Plugins[0].Bytes)
	return strings.Replace(inner, "{", fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,`, name), 1)
}

// Two requests for one container come one after the other, in whatever order.
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

// gcNow is a GC that says which containers are valid.
func (n *node) gcNow(list *libcni.NetworkConfigList, ids ...string) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range ids {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	return n.cni.GCNetworkList(n.t.Context(), list, args)
}

// forget makes libcni forget its attachments, so that a GC is the plugin's work
// and not a DEL of libcni's.
func (n *node) removeCache() {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.dir, "cache")); err != nil {
		n.t.Fatal(err)
	}
}

// GC detaches what is not valid any more, of its network and no other.
func TestGC(t *testing.T) {
	for _, cached := range []string{"libcni remembers", "libcni forgot"} {
		t.Run(cached, func(t *testing.T) {
			n := newNode(t)
			n.restart()
			one, two := n.list("one", kind{"1.1.0", "bridge", true}), n.list("two", kind{"1.1.0", "ptp", true})
			for _, id := range []string{"a", "b", "c"} {
				n.mustAdd(one, id)
			}
			n.mustAdd(two, "d")
			if cached == "libcni forgot" {
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

// A GC without the list is an error, and releases nothing.
func TestHazard27GCWithoutTheList(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", kind{"1.1.0", "bridge", true})
	n.mustAdd(list, "a")
	n.removeCache()
	if err := n.cni.GCNetworkList(t.Context(), list, nil); err == nil {
		t.Error("a GC that does not say what is valid is no error")
	}
	n.agree(2, "a")
}

// cnitool is a runtime too. Its GC takes nothing for valid, and does not say so.
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
	// libcni deletes what it attached, and then asks the plugin without saying what
	// is valid (hazard 27).
	if err := tool("gc"); err == nil || !strings.Contains(err.Error(), "cni.dev/valid-attachments") {
		t.Errorf("cnitool gc: %v", err)
	}
	n.agree(1)
	if err := tool("del"); err != nil {
		t.Fatalf("cnitool del: %v", err)
	}
	n.agree(1)
}
