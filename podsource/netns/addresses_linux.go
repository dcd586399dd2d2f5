// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// readThreadNetNS reads the namespace of a thread.
func (s *scan) readThreadNetNS(pid, dir string) {
	file := dir + "/ns/net"
	ns, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		s.could(dir, &fs.PathError{Op: "open", Path: file, Err: err})
		return
	}
	defer func() { _ = unix.Close(ns) }() // nothing was written through it
	s.readNetNS(ns, "of process "+pid)
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
	name := fmt.Sprintf("network namespace %d", stat.Ino)
	s.within(name, func() {
		ips, unaddressed, err := s.ask(ns, s.unaddressed != nil && stat.Ino != s.host)
		if err != nil && !errors.Is(err, podsource.ErrIncomplete) {
			s.err = hint(fmt.Errorf("%s: %w", name, err))
			return
		}
		if unaddressed != "" {
			s.unaddressed[stat.Ino] = fmt.Sprintf("%s in %s, %s", unaddressed, name, where)
		}
		s.note(stat.Ino, where, ips, err)
	})
}

// ask asks the kernel for the addresses in a network namespace and, with links, for an
// interface that may use another one. If the thread can't return to its own namespace, it
// stays in the other one, and ends when the scan ends.
func (s *scan) ask(ns int, links bool) (ips []netip.Addr, unaddressed string, err error) {
	if err := s.setns(ns, unix.CLONE_NEWNET); err != nil {
		return nil, "", fmt.Errorf("entering it: %w", err)
	}
	defer func() { _ = s.setns(s.home, unix.CLONE_NEWNET) }()
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil && !errors.Is(err, podsource.ErrIncomplete) {
		return nil, "", fmt.Errorf("listing its addresses: %w", err)
	}
	ips, addressed, invalid := addressesOf(addresses)
	if links {
		interfaces, err := dump(netlink.LinkList)
		unaddressed = unaddressedOf(interfaces, addressed)
		if err != nil {
			unaddressed = fmt.Sprintf("interfaces that can't be listed (%v)", err)
		}
	}
	return ips, unaddressed, cmp.Or(invalid, err)
}

// dump returns a list of the kernel. If something changes meanwhile, it asks again, five
// times in all, and then returns the last list with podsource.ErrIncomplete.
func dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 5 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, fmt.Errorf("%w: %w", podsource.ErrIncomplete, err)
}

// addressesOf returns addresses except loopback and link-local ones, and the interfaces
// that have one, by index.
func addressesOf(list []netlink.Addr) (ips []netip.Addr, addressed map[int]bool, err error) {
	addressed = make(map[int]bool)
	for _, a := range list {
		if a.IPNet == nil {
			return nil, nil, errors.New("one of its addresses is missing from the kernel's answer")
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			return nil, nil, fmt.Errorf("one of its addresses is invalid: %v", a.IP)
		}
		ip = ip.Unmap()
		// An address is left out only if both its scope and the address itself are
		// local. In doubt it keeps a reservation.
		if a.Scope == unix.RT_SCOPE_UNIVERSE || !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			ips = append(ips, ip)
			addressed[a.LinkIndex] = true
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare) // a tenant may configure any number
	return slices.Compact(ips), addressed, nil
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

// answerNetworks returns the networks that the answer speaks of, and a note if these are
// not all networks of the options. A namespace that an ADD in flight sets up does not
// count, since the ADD claims its container. Only ADDs in the node's PID namespace are
// trusted here: a tenant may set CNI_NETNS to any namespace.
func (s *scan) answerNetworks() (of []string, note string) {
	for _, a := range s.adds {
		if !a.inNodePIDNS {
			continue
		}
		for _, inode := range a.at {
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
