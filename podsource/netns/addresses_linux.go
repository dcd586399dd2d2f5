// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// readNetNS notes the addresses of an open network namespace, and where it was found. If they
// change meanwhile, there may be others (netlink.ErrDumpInterrupted). It closes ns. If the thread
// can't return to its own namespace, it stays in the other one, and ends when the scan ends.
func (s *scan) readNetNS(ns int, where string) {
	defer func() { _ = unix.Close(ns) }() // nothing was written through it
	var stat unix.Stat_t
	err := cmp.Or(unix.Fstat(ns, &stat), s.setns(ns, unix.CLONE_NEWNET))
	inode := stat.Ino // a thread may have changed its namespace
	defer func() { _ = s.setns(s.home, unix.CLONE_NEWNET) }()
	var addresses []netlink.Addr
	if err == nil {
		addresses, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		s.err = hint(fmt.Errorf("listing the addresses in network namespace %d, %s: %w", inode, where, err))
		return
	}
	ips, addressed := addressesOf(addresses)
	s.note(inode, where, ips, err)
	if len(s.opts.Networks) == 0 || inode == s.host {
		return
	}
	interfaces, err := netlink.LinkList()
	unaddressed := unaddressedOf(interfaces, addressed)
	if err != nil {
		unaddressed = fmt.Sprintf("interfaces that can't be listed (%v)", err)
	}
	if unaddressed != "" {
		s.unaddressed[inode] = fmt.Sprintf("%s in network namespace %d, %s", unaddressed, inode, where)
	}
}

// addressesOf returns IP addresses except loopback and link-local ones, and the interfaces that
// have one, by index. A tenant may have addresses of other protocols, such as MCTP
// (mctp_dump_addrinfo in the kernel's net/mctp/device.c).
func addressesOf(list []netlink.Addr) (ips []netip.Addr, addressed map[int]bool) {
	addressed = make(map[int]bool)
	for _, a := range list {
		if a.IPNet == nil {
			continue
		}
		ip, isIP := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		// An address is left out only if both its scope and the address itself are
		// local. In doubt it keeps a reservation.
		if isIP && (a.Scope == unix.RT_SCOPE_UNIVERSE || !ip.IsLoopback() && !ip.IsLinkLocalUnicast()) {
			ips = append(ips, ip)
			addressed[a.LinkIndex] = true
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare) // a tenant may configure any number
	return slices.Compact(ips), addressed
}

// interfaceKinds are the kinds of the interfaces made by the main plugins that
// configure addresses: bridge and ptp (veth), macvlan, ipvlan, vlan.
var interfaceKinds = []string{"veth", "macvlan", "ipvlan", "vlan"}

// unaddressedOf describes an interface that is of interfaceKinds, is up, and has no address.
// Its container may still use one: gVisor and KubeVirt remove it from the interface. An
// interface that is down was left by an ADD that failed or was killed: plugins set it up
// together with its address (plugins, pkg/ipam ConfigureIface).
func unaddressedOf(links []netlink.Link, addressed map[int]bool) string {
	for _, link := range links {
		if a := link.Attrs(); slices.Contains(interfaceKinds, link.Type()) && a.Flags&net.FlagUp != 0 && !addressed[a.Index] {
			return "no address at interface " + printable(a.Name)
		}
	}
	return ""
}

// note notes a namespace, or after an error that it may have other addresses.
func (s *scan) note(inode uint64, where string, ips []netip.Addr, err error) {
	pod := podsource.Pod{IPs: ips, Origin: fmt.Sprintf("network namespace %d, %s", inode, where)}
	if inode == s.host {
		pod.HostNetwork, pod.Origin = true, "the node's own network namespace"
	}
	if err == nil || len(s.found[inode].IPs) == 0 {
		s.found[inode] = pod
	}
	s.whole[inode] = err == nil
	if len(ips) > 0 {
		s.foundNew = true
	}
}

// all returns a pod for every namespace with an address, and says why that may not be
// all. Empty: it is all.
func (s *scan) all() (pods []podsource.Pod, missing string) {
	var partly []string
	for _, inode := range slices.Sorted(maps.Keys(s.found)) {
		pod := s.found[inode]
		if !s.whole[inode] {
			partly = append(partly, pod.Origin)
		}
		if pod.NotRunning = !s.withProcess[inode] && len(s.late) == 0; pod.NotRunning {
			pod.Origin += ", without a process"
		}
		if len(pod.IPs) > 0 {
			pods = append(pods, pod)
		}
	}
	switch {
	case len(s.late) > 0:
		missing = strings.Join(slices.Sorted(maps.Keys(s.late)), "; ")
	case len(partly) > 0:
		missing = fmt.Sprintf("%d network namespaces could not be read, among them %s", len(partly), partly[0])
	case s.foundNew:
		missing = "new network namespaces appear faster than they are read"
	case s.truncated:
		missing = "some process has more mounts than are read"
	}
	return pods, missing
}
