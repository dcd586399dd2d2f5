// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

const (
	noneLeft  = "no IP addresses available in range set"
	twice     = "duplicate allocation is not allowed"
	notFree   = "is not available in range set"
	container = "c0ffee"
)

// The address that a container has is kept if something may be using it, and else given up at once. Its
// reservations for another interface or network stay, however old they are. A requested address of another
// container is released by the rules of a pass, or its holder is named. In the rows with "vfio" the
// namespace shows no address.
func TestItsOwn(t *testing.T) {
	in := func(netNS string) call { return call{env: []string{"CNI_NETNS=" + netNS}} }
	elsewhere := func(n *testNode) call {
		n.Make("again")
		return in("/run/netns/again")
	}
	requested := func(n *testNode, holder string, age time.Duration) call { // its record proves the cache
		n.reserve(address(0), holder, age)
		n.record(holder, "/run/netns/"+holder, age)
		n.reserve(address(9), "more", old) // releasing only this one would not help
		return call{id: "a", args: "IgnoreUnknown=1;IP=" + address(0)}
	}
	for _, row := range []struct {
		reason, plugin string
		setUp          func(*testNode) call // the container lives, has the address 0, and is recorded
		want           string               // why it is kept; empty: it is released
	}{
		{"its record has a namespace that lives", "bridge", elsewhere, "CNI cache"},
		{"its record is gone, and no address is seen", "bridge", func(n *testNode) call { n.mustRemove(n.recordFile(container)); return call{} }, ""},
		{"its address is configured", "bridge", func(n *testNode) call {
			n.mustRemove(n.file(address(0)))
			n.mustAdd(container)
			n.mustRemove(n.recordFile(container))
			return call{}
		}, "network namespace"},
		{"another address of it is configured, in another network", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			other := n.mustAdd("other").String()
			n.write(filepath.Join(n.dataDir(), "othernet", other), container+"\r\nnet1", 0)
			return call{}
		}, "network namespace"},
		{"another ADD of it is in flight", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			n.process(0, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"an ancestor has another interface of it, as Multus' plugin", "bridge", func(n *testNode) call {
			mustWrite(n.t, n.dir+"/main", "#!/bin/sh\nCNI_IFNAME=eth0 "+n.bin+"/hostlocal-gc-ipam\nexit $?\n")
			n.mustRemove(n.recordFile(container))
			return call{env: []string{"CNI_IFNAME=net1"}, program: n.dir + "/main"}
		}, ""},
		{"a DEL of it is in flight", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			n.process(0, "CNI_COMMAND=DEL", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"its record has the namespace of this ADD, which it was attached to", "vfio", func(*testNode) call { return call{} }, "CNI cache"},
		{"the same, and its record is from the future", "vfio", func(n *testNode) call {
			cnitest.DateBack(n.t, n.recordFile(container), -old)
			return call{}
		}, "CNI cache"},
		{"the same, but its namespace would show its address", "bridge", func(n *testNode) call {
			cnitest.DateBack(n.t, n.recordFile(container), -old)
			return call{}
		}, ""},
		{"its record is older than the namespace of this ADD", "vfio", func(n *testNode) call {
			cnitest.DateBack(n.t, n.recordFile(container), old)
			return call{}
		}, ""},
		{"its record has the namespace of the process that this ADD is for", "vfio", func(n *testNode) call {
			netNS := n.process(syscall.CLONE_NEWNET)
			n.record(container, netNS, 0)
			return in(netNS)
		}, "CNI cache"},
		{"others are of another interface, and in another network", "bridge", func(n *testNode) call {
			id := sandbox("gone") // of the form of a runtime's
			n.Make(id)
			n.reserve(address(0), "gone", old)
			n.write(n.file(address(1)), id+"\r\nnet1", old)
			n.write(n.dataDir()+"/othernet/10.8.0.2", id+"\r\neth0", old)
			return call{id: id}
		}, ""},
		{"requested, and its own", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			return call{args: "IgnoreUnknown=1;IP=" + address(0)}
		}, ""},
		{"requested, and it leaked long ago", "bridge", func(n *testNode) call { return requested(n, "gone", old) }, ""},
		{"requested, and it leaked a minute ago", "bridge", func(n *testNode) call { return requested(n, "gone", time.Minute) }, ""},
		{"requested, and young", "bridge", func(n *testNode) call { return requested(n, "gone", 0) }, "10.9.0.2 is young"},
		{"requested, and its holder lives", "vfio", func(n *testNode) call { return requested(n, container, old) }, "10.9.0.2 is in-use"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			n.reserve(address(0), container, 0)
			n.Make(container)
			n.record(container, "/run/netns/"+container, 0)
			c := row.setUp(n)
			n.plugin = row.plugin
			all := n.reserved()
			before, _ := os.Stat(n.file(address(0)))
			c.command, c.id = "ADD", cmp.Or(c.id, container)
			got, msg := n.call(c), twice
			if c.args != "" {
				msg = notFree
			}
			says := strings.Contains(errorMessage([]byte(got.out)), msg) && strings.Contains(got.out, row.want)
			if heals := row.want == ""; (got.code == 0) != heals || !heals && !says {
				t.Errorf("code %d: %s", got.code, got.out)
			}
			after, err := os.Stat(n.file(address(0)))
			if kept := err == nil && os.SameFile(before, after) && after.ModTime().Equal(before.ModTime()); before != nil && kept != (row.want != "") {
				t.Errorf("its reservation is kept: %t", kept)
			}
			for ip, left := range all {
				if now := n.reserved()[ip]; left == c.id && ip != address(0) && now != left {
					t.Errorf("%s of %s is reserved for %q", ip, left, now)
				}
			}
		})
	}
}

// process starts a process with these variables, which ends with the test. It returns the path of its
// network namespace.
func (n *testNode) process(flags uintptr, env ...string) (netNS string) {
	n.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "echo; read -r end || :")
	cmd.Env, cmd.SysProcAttr = env, &syscall.SysProcAttr{Cloneflags: flags}
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			n.t.Error(err)
		}
	})
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // the kernel shows the variables a little after execve
		n.t.Fatalf("waiting for a process: %v", err)
	}
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}
