// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"encoding/json"
	"errors"
	"fmt"
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
type attachmentIPs []netip.Addr

func (a *attachmentIPs) UnmarshalJSON(text []byte) error {
	var list []*string
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	for _, s := range list {
		if s == nil {
			return errors.New("an address is null")
		}
		ip, err := netip.ParseAddr(*s)
		if err != nil {
			// With its prefix length, as it is in a CNI result, it means the same.
			prefix, prefixErr := netip.ParsePrefix(*s)
			if prefixErr != nil {
				return fmt.Errorf("%q is not an IP address", *s)
			}
			ip = prefix.Addr()
		}
		*a = append(*a, ip)
	}
	return nil
}

// networkStatus reads a network status annotation. An empty one says nothing:
// Multus used to write that when it had detached a pod.
func networkStatus(text string) ([]attachment, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var items []*attachment
	if err := json.Unmarshal([]byte(text), &items); err != nil {
		return nil, fmt.Errorf("not a JSON array of attachments: %w", err)
	}
	if items == nil {
		return nil, errors.New("not a JSON array of attachments, but null")
	}
	entries := make([]attachment, len(items))
	for i, item := range items {
		if item == nil {
			return nil, fmt.Errorf("attachment %d is null", i+1)
		}
		entries[i] = *item
	}
	return entries, nil
}
