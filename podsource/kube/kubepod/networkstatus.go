// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// NetworkStatusAnnotation is where a meta plugin such as Multus writes what it
// attached a pod to: a JSON array with one object for each attachment. See the
// "Kubernetes Network Custom Resource Definition De-facto Standard" of the
// Network Plumbing Working Group, section "Status of Pod Network Attachments":
// github.com/k8snetworkplumbingwg/multi-net-spec.
const NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// networksStatusAnnotation is the key that Multus used at first.
const networksStatusAnnotation = "k8s.v1.cni.cncf.io/networks-status"

// An attachment is what matters of one object of the annotation. Others of its
// fields may come and go with versions of the specification.
type attachment struct {
	IPs attachmentIPs `json:"ips"`
}

// attachmentIPs are the addresses of one attachment. They add up where a key is
// given twice, of which encoding/json would keep the last.
type attachmentIPs struct {
	ips     []netip.Addr
	garbled bool // some can't be read
}

// UnmarshalJSON takes all that can be read, and is never an error.
func (a *attachmentIPs) UnmarshalJSON(text []byte) error {
	var list []*string
	if json.Unmarshal(text, &list) != nil {
		a.garbled = true // and list has the strings that are there
	}
	for _, s := range list {
		ip, ok := parseIP(s)
		if !ok {
			a.garbled = true
			continue
		}
		a.ips = append(a.ips, ip)
	}
	return nil
}

// parseIP reads an address. With its prefix length, as it is in a CNI result, it
// means the same.
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

// annotatedIPs returns the addresses that the network status annotations of a pod
// name, and whether these are all: a tenant may have written anything there. An
// empty annotation says nothing: Multus used to write that when it had detached a
// pod.
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
			whole = whole && !a.IPs.garbled
		}
	}
	return ips, whole
}
