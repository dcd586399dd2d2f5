// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

const (
	twice     = "duplicate allocation is not allowed"
	notFree   = "is not available in range set"
	container = "c0ffee"
)

// reboot simulates a power loss: it removes every namespace and keeps the directories.
func (n *testNode) reboot() {
	n.t.Helper()
	for _, id := range n.IDs() {
		n.Remove(id)
	}
}

// requesting returns a runtime's parameters for a container that requests an address.
func (n *testNode) requesting(id, ip string) *libcni.RuntimeConf {
	rt := n.of(id)
	rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", ip}}
	return rt
}

// After a power loss a runtime starts the same containers again. That fails with host-local alone.
// Here the first start succeeds, with and without a requested address, even if the reservation is
// seconds old.
func TestStartsAgain(t *testing.T) {
	for _, ip := range []string{"", "10.9.0.77"} {
		t.Run("requested "+ip, func(t *testing.T) {
			n := newTestNode(t)
			of, want := n.of, twice
			if ip != "" {
				of, want = func(id string) *libcni.RuntimeConf { return n.requesting(id, ip) }, notFree
			}
			for _, id := range []string{container, "other"} {
				n.Make(id)
				if id == container {
					if _, err := n.addAs(of(id), "hostlocal-gc-ipam"); err != nil {
						t.Fatal(err)
					}
				} else if _, err := n.add(id); err != nil {
					t.Fatal(err)
				}
			}
			n.reboot()
			n.Make(container)
			if _, err := n.addAs(of(container), "host-local"); err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("the test is of no use: host-local alone says %v", err)
			}
			n.Remove(container) // bridge leaves its interface after a failure of IPAM
			n.Make(container)
			got, err := n.addAs(of(container), "hostlocal-gc-ipam")
			if err != nil {
				t.Fatal(err)
			}
			if ip != "" && got.String() != ip {
				t.Errorf("requested %s, got %v", ip, got)
			}
			n.keeps(map[string]netip.Addr{container: got})
			if reserved := n.reserved(); len(reserved) != 2 {
				t.Errorf("reserved %v, want the new one and the other container's", reserved)
			}
		})
	}
}

// The container's earlier address is kept if something may be using it.
func TestKeepsItsOwn(t *testing.T) {
	for _, row := range []struct {
		reason string
		setUp  func(*testNode) call
		want   string
	}{
		{"its address is configured", func(n *testNode) call {
			n.mustAdd(container)
			return call{}
		}, "is configured in"},
		{"another address of it is configured, in another network", func(n *testNode) call {
			n.reserve(address(0), container, 0)
			n.mustAdd("other")
			path := n.dataDir() + "/othernet"
			if err := os.Mkdir(path, 0o755); err != nil {
				n.t.Fatal(err)
			}
			n.write(path+"/"+n.Addresses("other")[0].String(), container+"\r\nnet1", 0)
			return call{}
		}, "is configured in"},
		{"a record names a living namespace", func(n *testNode) call {
			n.reserve(address(0), container, 0)
			n.Make("elsewhere")
			n.record(container, "/var/run/netns/elsewhere", 0)
			return call{}
		}, "it may live according to CNI cache"},
		{"a record is torn", func(n *testNode) call {
			n.reserve(address(0), container, 0)
			n.write(n.recordFile(container), "{", 0)
			return call{}
		}, "it may live according to CNI cache"},
		{"another ADD of it is in flight", func(n *testNode) call {
			n.reserve(address(0), container, 0)
			n.process("CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"a DEL of it is in flight", func(n *testNode) call {
			n.reserve(address(0), container, 0)
			n.process("CNI_COMMAND=DEL", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"processes can't be seen", func(n *testNode) call {
			n.reserve(address(0), container, 0)
			n.gc = `{}`
			return call{}
		}, "hostPID"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			c := row.setUp(n)
			before := n.reserved()
			c.command, c.id = "ADD", container
			got := n.call(c)
			if got.code == 0 || !strings.Contains(errorMessage([]byte(got.out)), twice) || !strings.Contains(got.out, row.want) {
				t.Errorf("code %d: %s", got.code, got.out)
			}
			if after := n.reserved(); len(after) != len(before) {
				t.Errorf("reserved before %v, after %v", before, after)
			}
		})
	}
}

// Reservations of the same container for another interface or network stay.
func TestOwnIsNoOther(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), container, old)
	n.write(n.file(address(1)), container+"\r\nnet1", old)
	n.write(n.file(address(2)), container, old) // as host-local before 0.8.0 wrote it
	n.write(n.dataDir()+"/othernet/10.8.0.2", container+"\r\neth0", old)
	n.record(container, "/run/netns/"+container, old) // its own namespace, which exists again
	n.Make(container)
	if got := n.call(call{command: "ADD", id: container}); got.code != 0 {
		t.Fatal(got.out)
	}
	if left := n.reserved(); len(left) != 3 || !cnitest.Exists(n.file(address(1))) || !cnitest.Exists(n.dataDir()+"/othernet/10.8.0.2") {
		t.Errorf("left: %v, want those two and the new one", left)
	}
}

// A requested address of another container is released if it leaked, by the rules of a pass, or
// else its holder is named.
func TestRequestedOfAnother(t *testing.T) {
	for _, row := range []struct {
		reason string
		setUp  func(*testNode) (ip string)
		heals  bool
		want   string
	}{
		{"it leaked long ago", func(n *testNode) string {
			n.reserve(address(0), "gone", old)
			return address(0)
		}, true, ""},
		{"it leaked a minute ago", func(n *testNode) string {
			n.reserve(address(0), "gone", time.Minute)
			n.record("gone", "/run/netns/gone", time.Minute)
			return address(0)
		}, true, ""},
		{"it is young", func(n *testNode) string {
			n.reserve(address(0), "gone", 0)
			return address(0)
		}, false, "10.9.0.2 is young"},
		{"its holder lives", func(n *testNode) string {
			ip := n.mustAdd("live").String()
			cnitest.DateBack(n.t, n.file(ip), old)
			return ip
		}, false, "is in-use"},
	} {
		n := newTestNode(t)
		n.reserve(address(9), "more", old) // releasing only this one would not help
		ip := row.setUp(n)
		got := n.call(call{command: "ADD", id: "a", args: "IgnoreUnknown=1;IP=" + ip})
		if (got.code == 0) != row.heals || !strings.Contains(got.out, row.want) {
			t.Errorf("%s: code %d: %s", row.reason, got.code, got.out)
		}
		if id := n.reserved()[ip]; (id == "a") != row.heals {
			t.Errorf("%s: reserved for %q", row.reason, id)
		}
	}
}

// process starts a process with these variables, which waits for its end.
func (n *testNode) process(env ...string) {
	n.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "echo; read -r end || :")
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	n.start(cmd)
	// The kernel shows the variables a little after execve.
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		n.t.Fatalf("waiting for a process: %v", err)
	}
}

// start starts a process that ends with its stdin, at the end of the test.
func (n *testNode) start(cmd *exec.Cmd) {
	n.t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := stdin.Close(); err != nil {
			n.t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			n.t.Error(fmt.Errorf("ending a process: %w", err))
		}
	})
}
