// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
)

// kinds are those of the interfaces that main plugins make which configure addresses:
// bridge and ptp, macvlan, ipvlan, vlan.
var kinds = []string{"veth", "macvlan", "ipvlan", "vlan"}

// noteBare notes a namespace with an interface of such a kind that is up and shows no
// address. Its container may use one nevertheless, as gVisor and KubeVirt take theirs
// away. One that is down is what an ADD leaves that failed or was killed: the plugins set
// it up with its address (plugins, pkg/ipam ConfigureIface).
func (s *scan) noteBare(inode uint64, where string, linkList func() ([]netlink.Link, error), addrList func(netlink.Link, int) ([]netlink.Addr, error)) {
	links, err := linkList()
	if err != nil {
		s.bare[inode] = fmt.Sprintf("the interfaces in network namespace %d, %s, can't be listed: %v", inode, where, err)
		return
	}
	for _, link := range links {
		if !slices.Contains(kinds, link.Type()) || link.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		ips, err := dump(func(_ netlink.Link, family int) ([]netlink.Addr, error) { return addrList(link, family) })
		if err != nil || len(ips) == 0 {
			s.bare[inode] = fmt.Sprintf("interface %s in network namespace %d, %s, shows no address", printable(link.Attrs().Name), inode, where)
			return
		}
	}
}

// speaks returns the networks that the answer may speak of, and why not of those that
// the options name. A namespace that an ADD is about to set up hides nothing: the ADD
// names its container. That a container's process says so of any namespace counts for
// nothing: a tenant may set CNI_NETNS to another's.
func (s *scan) speaks(networks []string) (of []string, note string) {
	for _, a := range s.underWay {
		if !a.ofNode {
			continue
		}
		for _, inode := range s.namespacesAt(a.netNS) {
			delete(s.bare, inode)
		}
	}
	for _, inode := range slices.Sorted(maps.Keys(s.bare)) {
		return nil, s.bare[inode] + ": its container may use one that is not seen, so no address is known to be free (networks " + fmt.Sprint(networks) + ")"
	}
	return slices.Clone(networks), ""
}
