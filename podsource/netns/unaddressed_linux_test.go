// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inPodNetNS calls do in a pod's network namespace.
func inPodNetNS(t *testing.T, pid int, do func() error) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(onThreadOf(func() error { return unix.Setns(fd, unix.CLONE_NEWNET) }, do), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// addAddress adds an address to an interface of a pod.
func addAddress(t *testing.T, pid int, name, ip string) {
	t.Helper()
	inPodNetNS(t, pid, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(ip)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, addr)
	})
}

// A container that removes the address from its namespace, as gVisor does, has an
// interface without address. While there is such an interface, no address is known to
// be free.
//
// Guard: [unaddressedOf] checks each interface, not each namespace, and [scan.noteClaims]
// trusts only ADDs in the node's PID namespace.
func TestHazard59InterfaceShowsNoAddress(t *testing.T) {
	if !onNode(t) {
		return
	}
	networks := []string{"podnet", "storage"}
	s, err := New(Options{Nested: true, Networks: networks})
	if err != nil {
		t.Fatal(err)
	}
	check := func(reason string, want []string, note string) {
		t.Helper()
		a, err := s.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		adds, seen := parts(t, a)
		if !seen.SeesAddresses || !slices.Equal(seen.Networks, want) || !strings.Contains(seen.Note, note) || note == "" && seen.Note != "" {
			t.Errorf("speaks of %v, note %q: %s", seen.Networks, seen.Note, reason)
		}
		if adds.Networks != nil {
			t.Errorf("the part with the ADDs speaks of %v, want none", adds.Networks)
		}
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	if err := errors.Join(netlink.LinkAdd(pair), setUp("veth0"), setUp("veth1")); err != nil {
		t.Fatal(err)
	}
	check("no container, and an interface of the node's own", networks, "")
	pod, _ := startPod(t, "10.0.0.9")
	inPodNetNS(t, pod, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0"}}
		return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge))
	})
	check("an interface of a kind that no plugin makes for a container", networks, "")
	inPodNetNS(t, pod, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "net1"})
	})
	check("both are down, as after an ADD that was killed", networks, "")
	inPodNetNS(t, pod, func() error { return errors.Join(setUp("eth0"), setUp("net1")) })
	addAddress(t, pod, "eth0", "10.0.0.2/24")
	check("one of two has no address", nil, `interface "net1" in network namespace`)
	_, ended := startADD(t, "ADD", "c1", fmt.Sprintf("/proc/%d/ns/net", pod))
	check("an ADD in flight sets it up, and names the container", networks, "")
	ended()
	check("the ADD has ended", nil, `interface "net1"`)
	_, ended = start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", pod))
	check("a tenant claims to set up another pod's namespace", nil, `interface "net1"`)
	ended()
	addAddress(t, pod, "net1", "fe80::1/64")
	check("a link-local address is not a container's address", nil, `interface "net1"`)
	named := s
	s = nested(t)
	check("no network in the options", nil, "")
	s = named
	addAddress(t, pod, "net1", "10.0.1.2/24")
	check("both have an address", networks, "")
}
