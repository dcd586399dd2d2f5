// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
	// the other fields.
	NetNS NetNS `json:"netns,omitzero"`
	// Time is when the attachment was complete, for people. Zero is the time of Add.
	Time time.Time `json:"time"`
}

// name matches what CNI allows as the name of a network and as a container ID
// (SPEC.md, sections 1 and 2). Runtimes send nothing else, and package gc refuses some
// other names.
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// check returns an error for an invalid attachment, and for one that the file can't
// represent.
func (e *Entry) check() error {
	switch {
	case !name.MatchString(e.Network):
		return fmt.Errorf("%q is not the name of a network", e.Network)
	case !name.MatchString(e.ContainerID):
		return fmt.Errorf("%q is not a container ID that CNI allows", e.ContainerID)
	case e.IfName == "" || len(e.IfName) > 15 || e.IfName == "." || e.IfName == ".." ||
		strings.ContainsFunc(e.IfName, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		return fmt.Errorf("%q is not the name of an interface", e.IfName)
	case slices.ContainsFunc(e.IPs, func(ip netip.Addr) bool { return !ip.IsValid() }):
		return errors.New("one of its addresses is invalid")
	}
	for _, s := range []string{e.IfName, e.Pod.Namespace, e.Pod.Name, string(e.UID), e.NetNS.Path} {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%q is not valid UTF-8, and can't be recorded", s)
		}
	}
	return nil
}

// normalize checks an entry, sets its defaults, and encodes it.
func normalize(e Entry) (*item, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	e.IPs = append([]netip.Addr{}, e.IPs...)
	e.NetNS = e.NetNS.identified()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.Round(0).UTC() // as it is read from the file
	return newItem(e)
}
