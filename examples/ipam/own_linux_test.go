// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
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
	for ip, want := range map[string]string{"": twice, "10.9.0.77": notFree} {
		t.Run("requested "+ip, func(t *testing.T) {
			n := newTestNode(t)
			rt := n.of(container)
			if ip != "" {
				rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", ip}}
			}
			n.Make(container)
			_, err := n.addAs(rt, "hostlocal-gc-ipam")
			if err != nil {
				t.Fatal(err)
			}
			var got netip.Addr
			for _, ipam := range []string{"host-local", "hostlocal-gc-ipam"} {
				n.Remove(container) // the power loss, and bridge leaves its interface after a failure of IPAM
				n.Make(container)
				if got, err = n.addAs(rt, ipam); ipam == "host-local" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Fatalf("the test is of no use: host-local alone says %v", err)
				}
			}
			if err != nil || ip != "" && got.String() != ip || len(n.reserved()) != 1 {
				t.Errorf("requested %q, got %v, %v, reserved: %v", ip, got, err, n.reserved())
			}
			n.keeps(map[string]netip.Addr{container: got})
		})
	}
}

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
			n.process(0, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
			return call{}
		}, "serves it"},
		{"an ancestor has another interface of it, as Multus' plugin", "bridge", func(n *testNode) call {
			mustWrite(n.t, n.dir+"/main", "#!/bin/sh\nCNI_IFNAME=eth0 "+n.bin+"/hostlocal-gc-ipam\nexit $?\n")
			n.mustRemove(n.recordFile(container))
			return call{ifName: "net1", program: n.dir + "/main"}
		}, ""},
		{"a DEL of it is in flight", "bridge", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			n.process(0, "CNI_COMMAND=DEL", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
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
			if err := os.Symlink(n.process(syscall.CLONE_NEWNET), link); err != nil {
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
			netNS := n.process(syscall.CLONE_NEWNET)
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
		{"others are of another interface, and in another network", "bridge", func(n *testNode) call {
			id := sandbox("gone") // of the form of a runtime's
			n.Make(id)
			n.reserve(address(0), "gone", old)
			n.write(n.file(address(1)), id+"\r\nnet1", old)
			n.write(n.dataDir()+"/othernet/10.8.0.2", id+"\r\neth0", old)
			return call{id: id}
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
				if now := n.reserved()[ip]; left == nameOf(c.id) && ip != address(0) && now != left {
					t.Errorf("%s of %s is reserved for %q", ip, left, now)
				}
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
	conf, err := parseConfig([]byte(n.config()))
	if err != nil {
		t.Fatal(err)
	}
	r := &request{began: time.Now(), own: ownADD(network), conf: conf, store: hostlocal.New(conf.dataDir)}
	if r.source, err = newSource(conf); err != nil {
		t.Fatal(err)
	}
	all, looks := r.source, 0
	r.source = podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		if looks++; looks == 2 { // the next plugin has started
			n.process(0, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
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

func (n *testNode) mustRemove(path string) {
	n.t.Helper()
	if err := os.Remove(path); err != nil {
		n.t.Fatal(err)
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
