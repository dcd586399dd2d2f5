// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// readThreadNetNS reads the namespace of a thread.
func (s *scan) readThreadNetNS(dir string) {
	ns := -1
	defer func() { _ = unix.Close(ns) }() // nothing was written through it
	if s.open(&ns, dir, "/ns/net", unix.O_RDONLY) {
		s.readNetNS(ns, "of process "+s.pid)
	}
}

// readNetNS notes the addresses of a namespace, and where it was found.
func (s *scan) readNetNS(ns int, where string) {
	var stat unix.Stat_t
	if err := unix.Fstat(ns, &stat); err != nil {
		s.err = fmt.Errorf("a network namespace %s: %w", where, err)
		return
	}
	if _, ok := s.found[stat.Ino]; ok { // the thread has changed its namespace
		return
	}
	var ips []netip.Addr
	var unaddressed string
	var err error
	home, links, name := s.home, s.unaddressed != nil && stat.Ino != s.host, fmt.Sprintf("network namespace %d", stat.Ino)
	if !s.bounded(name, "", func(string) error {
		ips, unaddressed, err = s.ask(ns, home, links)
		return nil
	}) {
		s.skip = false // only this namespace hangs
		return
	}
	if err != nil && !errors.Is(err, podsource.ErrIncomplete) {
		s.err = hint(fmt.Errorf("%s: %w", name, err))
		return
	}
	if unaddressed != "" {
		s.unaddressed[stat.Ino] = fmt.Sprintf("%s in %s, %s", unaddressed, name, where)
	}
	s.note(stat.Ino, where, ips, err)
}

// ask asks the kernel for the addresses in a network namespace and, with links, for an
// interface that may use another one. If the thread can't return to its own namespace, it
// ends in the other one when the scan ends.
func (s *scan) ask(ns, home int, links bool) (ips []netip.Addr, unaddressed string, err error) {
	if err := s.setns(ns, unix.CLONE_NEWNET); err != nil {
		return nil, "", fmt.Errorf("entering it: %w", err)
	}
	defer func() { _ = s.setns(home, unix.CLONE_NEWNET) }()
	addresses, err := dump(func() ([]byte, error) { return syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC) })
	if err != nil && !errors.Is(err, podsource.ErrIncomplete) {
		return nil, "", fmt.Errorf("listing its addresses: %w", err)
	}
	ips, addressed, addressErr := addressesOf(addresses)
	if links {
		interfaces, err := dump(func() ([]byte, error) { return syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC) })
		unaddressed = unaddressedOf(interfaces, addressed)
		if err != nil {
			unaddressed = fmt.Sprintf("interfaces that can't be listed (%v)", err)
		}
	}
	return ips, unaddressed, cmp.Or(addressErr, err)
}

// dump returns the messages of a netlink dump. If something changes meanwhile, it asks
// again, five times in all, and then returns the last messages with
// podsource.ErrIncomplete.
func dump(ask func() ([]byte, error)) (messages []syscall.NetlinkMessage, err error) {
	for range 5 {
		data, err := ask()
		if err == nil {
			messages, err = syscall.ParseNetlinkMessage(data)
		}
		interrupted := false
		for _, m := range messages {
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			if m.Header.Type == unix.NLMSG_DONE && len(m.Data) >= 4 && err == nil { // netlink_dump_done in the kernel's net/netlink/af_netlink.c
				if n := int32(binary.NativeEndian.Uint32(m.Data)); n < 0 {
					err = syscall.Errno(-n)
				}
			}
		}
		if err != nil || !interrupted {
			return messages, err
		}
	}
	return messages, podsource.ErrIncomplete
}

// addressesOf returns the addresses in a dump except loopback and link-local ones, and
// the interfaces that have one, by index.
func addressesOf(messages []syscall.NetlinkMessage) (ips []netip.Addr, addressed map[uint32]bool, err error) {
	addressed = make(map[uint32]bool)
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWADDR {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		var value []byte
		for _, a := range attributes { // with a peer, IFA_ADDRESS is the peer's (rtnetlink(7))
			if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && value == nil {
				value = a.Value
			}
		}
		ip, ok := netip.AddrFromSlice(value)
		if err == nil && !ok {
			err = fmt.Errorf("%v is invalid", value)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("one of its addresses: %w", err)
		}
		ip = ip.Unmap()
		// An address is left out only if both its scope and the address itself are
		// local. In doubt it keeps a reservation.
		scope, index := m.Data[3], binary.NativeEndian.Uint32(m.Data[4:]) // struct ifaddrmsg
		if scope == unix.RT_SCOPE_UNIVERSE || !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			ips = append(ips, ip)
			addressed[index] = true
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare) // a tenant may configure any number
	return slices.Compact(ips), addressed, nil
}

// interfaceKinds are the kinds of the interfaces made by the main plugins that
// configure addresses: bridge and ptp (veth), macvlan, ipvlan, vlan.
var interfaceKinds = []string{"veth", "macvlan", "ipvlan", "vlan"}

// unaddressedOf describes an interface in a dump that is of interfaceKinds, is up, and has
// no address. Its container may still use one: gVisor and KubeVirt remove it from the
// interface. An interface that is down was left by an ADD that failed or was killed: plugins
// set it up together with its address (plugins, pkg/ipam ConfigureIface).
func unaddressedOf(messages []syscall.NetlinkMessage, addressed map[uint32]bool) string {
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return fmt.Sprintf("an interface that can't be read (%v)", err)
		}
		var name, kind string
		for _, a := range attributes {
			switch a.Attr.Type {
			case unix.IFLA_IFNAME:
				name = string(bytes.TrimRight(a.Value, "\x00"))
			case unix.IFLA_LINKINFO: // the kind comes first (rtnl_link_info_fill in the kernel's net/core/rtnetlink.c)
				kind = string(a.Value[unix.SizeofRtAttr:binary.NativeEndian.Uint16(a.Value)])
			}
		}
		index, flags := binary.NativeEndian.Uint32(m.Data[4:]), binary.NativeEndian.Uint32(m.Data[8:]) // struct ifinfomsg
		if slices.Contains(interfaceKinds, strings.TrimRight(kind, "\x00")) && flags&unix.IFF_UP != 0 && !addressed[index] {
			return "no address at interface " + printable(name)
		}
	}
	return ""
}

// answerNetworks returns the networks that the answer speaks of, and a note if these are
// not all networks of the options. A namespace that an ADD in flight sets up does not
// count, since the ADD claims its container. Only ADDs in the node's PID namespace are
// trusted here: a tenant may set CNI_NETNS to any namespace.
func (s *scan) answerNetworks() (of []string, note string) {
	for _, a := range s.adds {
		if !a.inNodePIDNS {
			continue
		}
		for _, inode := range s.namespacesAt(a.netNS) {
			delete(s.unaddressed, inode)
		}
	}
	for _, inode := range slices.Sorted(maps.Keys(s.unaddressed)) { // the lowest, to give the same note each time
		return nil, fmt.Sprintf("%s: its container may use one that is not seen, so no address is known to be free (networks %v)",
			s.unaddressed[inode], s.opts.Networks)
	}
	return slices.Clone(s.opts.Networks), ""
}

// note notes a namespace, or after an error that it may have other addresses.
func (s *scan) note(inode uint64, where string, ips []netip.Addr, err error) {
	pod := podsource.Pod{IPs: ips, Origin: fmt.Sprintf("network namespace %d, %s", inode, where)}
	if inode == s.host {
		pod.HostNetwork, pod.Origin = true, "the node's own network namespace"
	}
	if err == nil {
		s.found[inode] = pod
		s.addressed += min(1, len(ips))
	} else if len(s.unreadable[inode].IPs) == 0 {
		s.unreadable[inode] = pod
	}
}

// all returns a pod for every namespace with an address, and says why that may not be
// all. Empty: it is all.
func (s *scan) all() (pods []podsource.Pod, missing string) {
	maps.DeleteFunc(s.unreadable, func(inode uint64, _ podsource.Pod) bool {
		_, elsewhere := s.found[inode]
		return elsewhere
	})
	inodes := slices.Sorted(maps.Keys(s.unreadable))
	switch {
	case len(s.late) > 0:
		missing = s.lateProcesses()
	case s.foundNew():
		missing = "new network namespaces appear faster than they are read"
	case len(inodes) > 0:
		missing = fmt.Sprintf("%d network namespaces could not be read, among them %s", len(inodes), s.unreadable[inodes[0]].Origin)
	case s.truncated:
		missing = "some process has more mounts than are read"
	}
	for _, from := range []map[uint64]podsource.Pod{s.found, s.unreadable} {
		for _, inode := range slices.Sorted(maps.Keys(from)) {
			pod := from[inode]
			if pod.NotRunning = !s.withProcess[inode] && len(s.late) == 0; pod.NotRunning {
				pod.Origin += ", without a process"
			}
			if len(pod.IPs) > 0 {
				pods = append(pods, pod)
			}
		}
	}
	return pods, missing
}

// lateProcesses names the processes that can't be read in time.
func (s *scan) lateProcesses() string { return strings.Join(slices.Sorted(maps.Keys(s.late)), "; ") }
