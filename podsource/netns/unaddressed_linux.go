// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
)

// interfaceKinds are the kinds of the interfaces made by the main plugins that
// configure addresses: bridge and ptp (veth), macvlan, ipvlan, vlan.
var interfaceKinds = []string{"veth", "macvlan", "ipvlan", "vlan"}

// noteUnaddressed notes a namespace with an interface of interfaceKinds that is up and
// has no address. Its container may still use one: gVisor and KubeVirt remove it from
// the interface. An interface that is down was left by an ADD that failed or was
// killed: plugins set it up together with its address (plugins, pkg/ipam
// ConfigureIface).
func (s *scan) noteUnaddressed(inode uint64, where string, linkList func() ([]netlink.Link, error), addrList func(netlink.Link, int) ([]netlink.Addr, error)) {
	links, err := linkList()
	if err != nil {
		s.unaddressed[inode] = fmt.Sprintf("the interfaces in network namespace %d, %s, can't be listed: %v", inode, where, err)
		return
	}
	for _, link := range links {
		if !slices.Contains(interfaceKinds, link.Type()) || link.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		ips, err := dump(func(_ netlink.Link, family int) ([]netlink.Addr, error) { return addrList(link, family) })
		if err != nil || len(ips) == 0 {
			s.unaddressed[inode] = fmt.Sprintf("interface %s in network namespace %d, %s, shows no address", printable(link.Attrs().Name), inode, where)
			return
		}
	}
}

// answerNetworks returns the networks that the answer speaks of, and a note if these are
// not all networks of the options. A namespace that an ADD in flight sets up does not
// count, since the ADD claims its container. Only ADDs in the node's PID namespace are
// trusted here: a tenant may set CNI_NETNS to any namespace.
func (s *scan) answerNetworks(networks []string) (of []string, note string) {
	for _, a := range s.inFlight {
		if !a.inNodePIDNS {
			continue
		}
		for _, inode := range s.namespacesAt(a.netNS) {
			delete(s.unaddressed, inode)
		}
	}
	for _, inode := range slices.Sorted(maps.Keys(s.unaddressed)) { // the lowest, to give the same note each time
		return nil, s.unaddressed[inode] + ": its container may use an address that is not seen, so no address is known to be free (networks " + fmt.Sprint(networks) + ")"
	}
	return slices.Clone(networks), ""
}
