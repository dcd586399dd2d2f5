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
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// readNetNS reads an open network namespace, and closes it. Many processes may be in one whose
// addresses can't be listed in time, so that hangs as a whole.
func (s *scan) readNetNS(ns int, where string) {
	defer func() { _ = unix.Close(ns) }() // nothing was written through it
	var stat unix.Stat_t
	err := unix.Fstat(ns, &stat) // a thread may have changed its namespace
	s.within(fmt.Sprintf("network namespace %d", stat.Ino), func() {
		s.noteNetNS(stat.Ino, where, cmp.Or(err, s.setns(ns, unix.CLONE_NEWNET)))
	})
}

// noteNetNS notes the addresses of a network namespace that the thread has entered, unless err says
// that it could not, and leaves it. If they change meanwhile, there may be others
// (netlink.ErrDumpInterrupted). If the thread can't return to its own namespace, it stays in the
// other one, and ends when the scan ends.
func (s *scan) noteNetNS(inode uint64, where string, err error) {
	defer func() { _ = s.setns(s.home, unix.CLONE_NEWNET) }()
	var list addresses
	if err == nil {
		s.buf = slices.Grow(s.buf[:0], nl.RECEIVE_BUFFER_SIZE)
		list, err = listAddresses(s.buf[:nl.RECEIVE_BUFFER_SIZE], func() { s.step(s.reads) })
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		s.err = fmt.Errorf("listing the addresses in network namespace %d, %s: %w", inode, where, err)
		return
	}
	s.note(inode, where, list.ips, err)
	if len(s.opts.Networks) == 0 || inode == s.host {
		return
	}
	interfaces, err := netlink.LinkList() // a tenant can make that fail, or leave one without address
	unaddressed := unaddressedOf(interfaces, list.at)
	if err != nil {
		unaddressed = fmt.Sprintf("interfaces that can't be listed (%v)", err)
	}
	if unaddressed != "" {
		s.unaddressed[inode] = fmt.Sprintf("%s in network namespace %d, %s", unaddressed, inode, where)
	}
}

// addresses are IP addresses except loopback and link-local ones.
type addresses struct {
	ips         []netip.Addr
	at          map[int]bool // the interfaces that have one, by index
	interrupted bool         // by a change: there may be others
}

// listAddresses lists the addresses of the thread's network namespace, after
// netlink.ErrDumpInterrupted not all. It calls step before each of the four dumps, so that a whole
// /16 can be listed with a CPU quota, and not before each message: a tenant may have any number.
//
// It lists each family by itself: in a dump of all families the kernel forgets between two of them
// that the first was interrupted (rtnl_dump_all in its net/core/rtnetlink.c sets prev_seq to 0). It
// lists each twice: the messages of the first dump have a page at most, later ones 32 KiB, since by
// then the kernel knows how much is received at once (netlink_dump and netlink_recvmsg in its
// net/netlink/af_netlink.c). So some 400 addresses come in one message. Between two messages the
// kernel may skip an address and not notice: it counts a change only after the list has changed
// (fib_inetaddr_event in its net/ipv4/fib_frontend.c).
//
// The socket is connected to the kernel, so that no other can send to it: root of the network
// namespace, a tenant, could make each listing fail (netlink_getsockbyportid). Package netlink has
// no such socket.
func listAddresses(buf []byte, step func()) (list addresses, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return list, err
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	err = unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	list.at = make(map[int]bool)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if err == nil {
			step()
			err = list.dump(fd, family, buf)
		}
	}
	if err == nil && list.interrupted {
		err = netlink.ErrDumpInterrupted
	}
	slices.SortFunc(list.ips, netip.Addr.Compare) // a tenant may configure any number
	list.ips = slices.Compact(list.ips)
	return list, err
}

// dump adds the addresses of one family.
func (a *addresses) dump(fd, family int, buf []byte) (err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfAddrmsg(family))
	_, err = unix.Write(fd, request.Serialize())
	for err == nil {
		n, from, recvErr := unix.Recvfrom(fd, buf, 0)
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid != nl.PidKernel {
			continue // it was sent before the socket was connected
		}
		messages, parseErr := syscall.ParseNetlinkMessage(buf[:max(n, 0)])
		err = cmp.Or(recvErr, parseErr)
		for _, m := range messages {
			a.interrupted = a.interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Header.Type {
			case unix.RTM_NEWADDR:
				err = cmp.Or(err, a.add(m))
			case unix.NLMSG_DONE, unix.NLMSG_ERROR: // with an error number, negative
				if len(m.Data) >= 4 && nl.NativeEndian().Uint32(m.Data) != 0 {
					err = unix.Errno(-nl.NativeEndian().Uint32(m.Data))
				}
				return err
			}
		}
	}
	return err
}

// add adds the address in a message of the kernel, if it has an IP address. A tenant may have others,
// such as of MCTP (mctp_dump_addrinfo in the kernel's net/mctp/device.c).
func (a *addresses) add(m syscall.NetlinkMessage) error {
	attributes, err := syscall.ParseNetlinkRouteAttr(&m)
	var ip netip.Addr
	for _, attr := range attributes { // IFA_ADDRESS beside IFA_LOCAL is the address of a peer
		if kind := attr.Attr.Type; kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS && !ip.IsValid() {
			ip, _ = netip.AddrFromSlice(attr.Value)
		}
	}
	ip = ip.Unmap()
	header := nl.DeserializeIfAddrmsg(m.Data)
	// An address is left out only if both its scope and the address itself are
	// local. In doubt it keeps a reservation.
	if ip.IsValid() && (header.Scope == unix.RT_SCOPE_UNIVERSE || !ip.IsLoopback() && !ip.IsLinkLocalUnicast()) {
		a.ips = append(a.ips, ip)
		a.at[int(header.Index)] = true
	}
	return err
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
	s.foundNew = s.foundNew || len(ips) > 0
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
	if len(partly) > 0 {
		missing = fmt.Sprintf("%d network namespaces could not be read, among them %s", len(partly), partly[0])
	}
	return pods, cmp.Or(strings.Join(slices.Sorted(maps.Keys(s.late)), "; "), missing, s.missing)
}
