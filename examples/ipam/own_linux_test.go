// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const (
	noneLeft  = "no IP addresses available in range set"
	twice     = "duplicate allocation is not allowed"
	notFree   = "is not available in range set"
	container = "c0ffee"
)

// After a power loss a runtime starts the same containers again. That fails with host-local alone.
// Here the first start succeeds, with and without a requested address, even if the reservation is
// seconds old.
func TestStartsAgain(t *testing.T) {
	for _, ip := range []string{"", "10.9.0.77"} {
		t.Run("requested "+ip, func(t *testing.T) {
			n := newTestNode(t)
			rt, want := n.of(container), twice
			if ip != "" {
				rt.Args, want = [][2]string{{"IgnoreUnknown", "1"}, {"IP", ip}}, notFree
			}
			n.mustAdd("other")
			n.Make(container)
			if _, err := n.addAs(rt, "hostlocal-gc-ipam"); err != nil {
				t.Fatal(err)
			}
			n.Remove("other") // the power loss
			for _, ipam := range []string{"host-local", "hostlocal-gc-ipam"} {
				n.Remove(container) // bridge leaves its interface after a failure of IPAM
				n.Make(container)
				got, err := n.addAs(rt, ipam)
				switch {
				case ipam == "host-local":
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Fatalf("the test is of no use: host-local alone says %v", err)
					}
				case err != nil || ip != "" && got.String() != ip:
					t.Errorf("requested %q, got %v, %v", ip, got, err)
				default:
					n.keeps(map[string]netip.Addr{container: got})
				}
			}
			if reserved := n.reserved(); len(reserved) != 2 {
				t.Errorf("reserved %v, want the new one and the other container's", reserved)
			}
		})
	}
}

// The address that a container has is kept if something may be using it, and else given up at once.
// In the rows with "vfio" the namespace shows no address.
func TestItsOwn(t *testing.T) {
	in := func(netNS string) call { return call{env: []string{"CNI_NETNS=" + netNS}} }
	elsewhere := func(n *testNode) call {
		n.Make("again")
		return in("/run/netns/again")
	}
	others := func(n *testNode, age time.Duration) { // prove the cache
		n.reserve(address(1), "other", age)
		n.record("other", "/run/netns/other", age)
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
		{"its record is torn", "bridge", func(n *testNode) call { n.write(n.recordFile(container), "{", 0); return call{} }, "which is damaged"},
		{"another ADD of it is in flight", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			n.process("CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"an ancestor has another interface of it, as Multus' plugin", "bridge", func(n *testNode) call {
			mustWrite(n.t.(*testing.T), n.dir+"/main", "#!/bin/sh\nCNI_IFNAME=eth0 "+n.bin+"/hostlocal-gc-ipam\nexit $?\n")
			n.mustRemove(n.recordFile(container))
			return call{ifName: "net1", program: n.dir + "/main"}
		}, ""},
		{"a DEL of it is in flight", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			n.process("CNI_COMMAND=DEL", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"the wrong cache, and another namespace", "vfio", func(n *testNode) call {
			n.gc = fmt.Sprintf(`{"nested":true,"cacheDirs":[%q]}`, n.dir)
			return elsewhere(n)
		}, "no source that counts"},
		{"the cache was wiped, and has newer records", "vfio", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			cnitest.DateBack(n.t, n.file(address(0)), old)
			others(n, time.Minute)
			return elsewhere(n)
		}, "oldest entry of the CNI cache"},
		{"its record has the namespace of this ADD, which it was attached to", "vfio", func(*testNode) call { return call{} }, "CNI cache"},
		{"the same, and the reservation has no interface, as before host-local 0.8.0", "vfio", func(n *testNode) call {
			n.write(n.file(address(0)), container, 0)
			return call{}
		}, "CNI cache"},
		{"the same, by a link to the namespace of a process", "vfio", func(n *testNode) call {
			link := filepath.Join(n.dir, "netns")
			if err := os.Symlink(n.processNetNS(), link); err != nil {
				n.t.Fatal(err)
			}
			n.record(container, link, 0)
			return in(link)
		}, "CNI cache"},
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
		{"the same, and its reservation has no interface", "vfio", func(n *testNode) call {
			n.write(n.file(address(0)), container, 0)
			cnitest.DateBack(n.t, n.recordFile(container), old)
			return call{}
		}, ""},
		{"it is from before the boot, and its record has no path, as of libcni before 1.2", "bridge", func(n *testNode) call {
			n.record(container, "", sinceBoot()+60*24*time.Hour)
			return call{}
		}, ""},
		{"its record has the namespace of the process that this ADD is for", "vfio", func(n *testNode) call {
			netNS := n.processNetNS()
			n.record(container, netNS, 0)
			return in(netNS)
		}, "CNI cache"},
		{"its record has a namespace that no longer exists", "vfio", func(n *testNode) call {
			n.Remove(container)
			return elsewhere(n)
		}, ""},
		{"its ADD did not end, and others are recorded since", "vfio", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			others(n, time.Hour)
			return call{}
		}, ""},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			n.reserve(address(0), container, 0)
			n.Make(container)
			n.record(container, "/run/netns/"+container, 0)
			c := row.setUp(n)
			n.plugin = row.plugin
			before, _ := os.Stat(n.file(address(0)))
			c.command, c.id = "ADD", container
			got := n.call(c)
			if (got.code == 0) != (row.want == "") || got.code != 0 && !strings.Contains(errorMessage([]byte(got.out)), twice) || !strings.Contains(got.out, row.want) {
				t.Errorf("code %d: %s", got.code, got.out)
			}
			after, err := os.Stat(n.file(address(0)))
			if kept := err == nil && os.SameFile(before, after) && after.ModTime().Equal(before.ModTime()); before != nil && kept != (row.want != "") {
				t.Errorf("its reservation is kept: %t", kept)
			}
		})
	}
}

// Between two plugins of a chain no process serves the container, and before the chain's end no
// record names it. If the namespace may hide the address, such a gap is not the container's end: a
// pass looks twice (hazard 72).
func TestHazard72KeepsItsOwnBetweenPlugins(t *testing.T) {
	n := newTestNode(t)
	n.plugin = "vfio"
	n.reserve(address(0), container, 0)
	n.reserve(address(1), "other", old)
	n.record("other", "/run/netns/other", old)
	t.Setenv("CNI_CONTAINERID", container)
	t.Setenv("CNI_IFNAME", "eth0")
	r := &request{began: time.Now(), own: ownADD(network)}
	var err error
	if r.conf, err = parseConfig([]byte(n.config())); err != nil {
		t.Fatal(err)
	}
	r.store = hostlocal.New(r.conf.dataDir)
	if r.source, err = newSource(r.conf); err != nil {
		t.Fatal(err)
	}
	all, looks := r.source, 0
	r.source = podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		if looks++; looks == 2 { // the next plugin has started
			n.process("CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
		}
		return all.Pods(ctx)
	})
	p, err := r.pass()
	if daemon, err := otherProcess(r.own, 0); daemon != "" || err != nil {
		t.Errorf("%s, which is older than any ADD: %v", daemon, err)
	}
	if err != nil || r.answer(&p, duplicate, netip.Addr{}) || !strings.Contains(strings.Join(r.said, ""), "serves it") || n.reserved()[address(0)] != container {
		t.Errorf("%v, %v, reserved: %v", err, r.said, n.reserved())
	}
}

// Reservations of the same container for another interface or network stay, however old they are.
func TestOwnIsNoOther(t *testing.T) {
	n := newTestNode(t)
	id := sandbox("gone") // of the form of a runtime's
	n.reserve(address(0), id, old)
	n.write(n.file(address(1)), id+"\r\nnet1", old)
	n.write(n.file(address(2)), id, old) // as host-local before 0.8.0 wrote it
	n.write(n.dataDir()+"/othernet/10.8.0.2", id+"\r\neth0", old)
	n.Make(id)
	if got := n.call(call{command: "ADD", id: id}); got.code != 0 {
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
		want   string // empty: it is released
	}{
		{"it leaked long ago", func(n *testNode) string { n.reserve(address(0), "gone", old); return address(0) }, ""},
		{"it leaked a minute ago", func(n *testNode) string {
			n.reserve(address(0), "gone", time.Minute)
			n.record("gone", "/run/netns/gone", time.Minute)
			return address(0)
		}, ""},
		{"it is young", func(n *testNode) string { n.reserve(address(0), "gone", 0); return address(0) }, "10.9.0.2 is young"},
		{"its holder lives", func(n *testNode) string {
			ip := n.mustAdd("live").String()
			cnitest.DateBack(n.t, n.file(ip), old)
			return ip
		}, "is in-use"},
	} {
		n := newTestNode(t)
		n.reserve(address(9), "more", old) // releasing only this one would not help
		ip := row.setUp(n)
		got := n.call(call{command: "ADD", id: "a", args: "IgnoreUnknown=1;IP=" + ip})
		if heals := row.want == ""; (got.code == 0) != heals || !strings.Contains(got.out, row.want) || (n.reserved()[ip] == "a") != heals {
			t.Errorf("%s: code %d, reserved for %q: %s", row.reason, got.code, n.reserved()[ip], got.out)
		}
	}
}

func (n *testNode) mustRemove(path string) {
	n.t.Helper()
	if err := os.Remove(path); err != nil {
		n.t.Fatal(err)
	}
}

// processNetNS starts a process in a network namespace of its own, and returns its path.
func (n *testNode) processNetNS() string {
	n.t.Helper()
	process := exec.Command("/bin/cat")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	n.start(process)
	return fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid)
}

// process starts a process with these variables, which waits for its end.
func (n *testNode) process(env ...string) {
	n.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "echo; read -r end || :")
	cmd.Env = env
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
	if err := errors.Join(err, cmd.Start()); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			n.t.Error(err)
		}
	})
}
