// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// NetworkStatusAnnotation is the annotation in which a meta plugin such as Multus writes the
// attachments of a pod: a JSON array with one object for each. See the
// "Kubernetes Network Custom Resource Definition De-facto Standard" of the
// Network Plumbing Working Group, section "Status of Pod Network Attachments":
// github.com/k8snetworkplumbingwg/multi-net-spec.
const NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// networksStatusAnnotation is the key that older versions of Multus use.
const networksStatusAnnotation = "k8s.v1.cni.cncf.io/networks-status"

// An attachment is one object of the annotation. Its other fields depend on the version of
// the specification, and are ignored.
type attachment struct {
	IPs attachmentIPs `json:"ips"`
}

// attachmentIPs are the addresses of one attachment. With a duplicate key they are those of
// both lists, while encoding/json would keep the last one.
type attachmentIPs struct {
	ips     []netip.Addr
	partial bool // some can't be read
}

// UnmarshalJSON reads all addresses that can be read. It never returns an error.
func (a *attachmentIPs) UnmarshalJSON(text []byte) error {
	var list []*string
	if json.Unmarshal(text, &list) != nil {
		a.partial = true // list has the strings
	}
	for _, s := range list {
		ip, ok := parseIP(s)
		if !ok {
			a.partial = true
			continue
		}
		a.ips = append(a.ips, ip)
	}
	return nil
}

// parseIP parses an address, also one with a prefix length as in a CNI result.
func parseIP(s *string) (ip netip.Addr, ok bool) {
	if s == nil {
		return ip, false
	}
	ip, err := netip.ParseAddr(*s)
	if err != nil {
		prefix, err := netip.ParsePrefix(*s)
		return prefix.Addr(), err == nil
	}
	return ip, true
}

// annotatedIPs returns the addresses in the network status annotations of a pod, and whether
// everything in them could be read, since a tenant may have written them. An empty annotation
// is valid: older versions of Multus write it when they detach a pod.
func annotatedIPs(annotations map[string]string) (ips []netip.Addr, whole bool) {
	whole = true
	for _, key := range []string{NetworkStatusAnnotation, networksStatusAnnotation} {
		text := annotations[key]
		if strings.TrimSpace(text) == "" {
			continue
		}
		var items []json.RawMessage
		if json.Unmarshal([]byte(text), &items) != nil || items == nil {
			whole = false
			continue
		}
		for _, item := range items {
			var a *attachment
			if json.Unmarshal(item, &a) != nil || a == nil {
				whole = false
				continue
			}
			ips = append(ips, a.IPs.ips...)
			whole = whole && !a.IPs.partial
		}
	}
	return ips, whole
}
