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

// A Key names an attachment, as the CNI specification does: by the name of the
// network, CNI_CONTAINERID and CNI_IFNAME.
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

// An Entry is one attachment, recorded once it is complete. Only its key is
// required.
type Entry struct {
	Key
	// IPs are all addresses of the attachment.
	IPs []netip.Addr `json:"ips"`
	// Pod and UID name the pod, where they are known (CNI_ARGS).
	Pod types.NamespacedName `json:"pod,omitzero"`
	UID types.UID            `json:"uid,omitempty"`
	// NetNS is the network namespace. Given its Path alone (CNI_NETNS), Add
	// looks up the rest.
	NetNS NetNS `json:"netns,omitzero"`
	// Time is when the attachment was complete, for people. Zero is now.
	Time time.Time `json:"time"`
}

// What CNI allows as the name of a network and as a container ID (SPEC.md,
// sections 1 and 2). Nothing else comes from a runtime, and package gc
// refuses some of it.
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// check refuses what no attachment can be, and what would not come back from
// the file as it was.
func (e *Entry) check() error {
	switch {
	case !name.MatchString(e.Network):
		return fmt.Errorf("%q is not the name of a network", e.Network)
	case !name.MatchString(e.ContainerID):
		return fmt.Errorf("%q is not a container ID as CNI allows it", e.ContainerID)
	case e.IfName == "" || len(e.IfName) > 15 || e.IfName == "." || e.IfName == ".." ||
		strings.ContainsFunc(e.IfName, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		return fmt.Errorf("%q is not the name of an interface", e.IfName)
	case slices.ContainsFunc(e.IPs, func(ip netip.Addr) bool { return !ip.IsValid() }):
		return errors.New("one of its addresses is not an address")
	}
	for _, s := range []string{e.IfName, e.Pod.Namespace, e.Pod.Name, string(e.UID), e.NetNS.Path} {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%q is not valid UTF-8, and can't be recorded", s)
		}
	}
	return nil
}

// normalize checks an entry, fills in what it may leave out, and makes it ready
// for the file.
func normalize(e Entry) (*item, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	e.IPs = append([]netip.Addr{}, e.IPs...)
	e.NetNS = e.NetNS.seen()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.Round(0).UTC() // as it comes back from the file
	return newItem(e)
}
