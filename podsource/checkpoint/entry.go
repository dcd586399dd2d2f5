// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Key identifies an attachment as in the CNI specification: the name of the network,
// CNI_CONTAINERID and CNI_IFNAME.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

func (k Key) String() string {
	return fmt.Sprintf("%s of container %s in network %s", k.IfName, k.ContainerID, k.Network)
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Network, o.Network), cmp.Compare(k.ContainerID, o.ContainerID), cmp.Compare(k.IfName, o.IfName))
}

// An Entry is one complete attachment. Only its key is required.
type Entry struct {
	Key
	// IPs are all addresses of the attachment.
	IPs []netip.Addr `json:"ips"`
	// Pod and UID identify the pod, if they are known (CNI_ARGS).
	Pod types.NamespacedName `json:"pod,omitzero"`
	UID types.UID            `json:"uid,omitempty"`
	// NetNS is the network namespace. If only its Path is set (CNI_NETNS), Add sets
	// the other fields. Without a path a Backfill removes what its source does not list.
	NetNS NetNS `json:"netns,omitzero"`
	// Time is when the attachment was complete, or later. Zero is the time of Add.
	Time time.Time `json:"time"`
}

// name matches what CNI allows as the name of a network and as a container ID
// (SPEC.md, sections 1 and 2). Runtimes send nothing else, and package gc refuses some
// other names.
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// ifName matches the names that the kernel allows, except "." and "..", of any length.
var ifName = regexp.MustCompile(`^[^/:\s\pZ\x{FFFD}]+$`)

// check returns an error for an invalid attachment, and for one that the file can't
// represent.
func (e *Entry) check() error {
	switch {
	case !name.MatchString(e.Network):
		return fmt.Errorf("%q is not the name of a network", e.Network)
	case !name.MatchString(e.ContainerID):
		return fmt.Errorf("%q is not a container ID that CNI allows", e.ContainerID)
	case len(e.IfName) > 15 || e.IfName == "." || e.IfName == ".." || !ifName.MatchString(e.IfName):
		return fmt.Errorf("%q is not the name of an interface", e.IfName)
	case slices.ContainsFunc(e.IPs, func(ip netip.Addr) bool { return !ip.IsValid() }):
		return errors.New("one of its addresses is invalid")
	}
	return nil
}

// normalize checks an entry, sets its defaults, and copies what it shares with the caller.
func (e *Entry) normalize() error {
	if err := e.check(); err != nil {
		return err
	}
	e.IPs = append([]netip.Addr{}, e.IPs...)
	if now := readNetNS(e.NetNS.Path); e.NetNS.Inode == 0 && now.Inode != 0 && filepath.IsAbs(e.NetNS.Path) {
		e.NetNS = now
	}
	e.Time = cmp.Or(e.Time, time.Now()).Round(0).UTC() // as it is read from the file
	return nil
}

// A NetNS is a network namespace, and a path at which it was.
type NetNS struct {
	Path string `json:"path"`
	// Inode identifies the namespace while it exists. It is zero if it could not be read;
	// then the entry counts as live until it is removed.
	Inode uint64 `json:"inode,omitempty"`
	// ID is the namespace's ID, which the kernel does not reuse before the node boots
	// (ioctl NS_GET_ID, since Linux 6.18). It does reuse inode numbers. Zero is
	// unknown.
	ID uint64 `json:"id,omitempty"`
}

// Present reports whether the recorded namespace is still at its path. Before
// Linux 6.18 it is also true for another namespace with the same inode number. It is
// false if Inode is zero.
func (n NetNS) Present() bool { return n.Inode != 0 && n.is(readNetNS(n.Path)) }

// shown returns the namespace as the kernel shows it in /proc.
func (n NetNS) shown() string { return fmt.Sprintf("net:[%d]", n.Inode) }

// is reports whether n and now may be the same namespace.
func (n NetNS) is(now NetNS) bool {
	return n.Inode == now.Inode && (n.ID == now.ID || n.ID == 0 || now.ID == 0)
}
