// SPDX-License-Identifier: Apache-2.0

// Package iprange says which addresses host-local hands out from its ranges, and how many
// they are. It imports only the standard library, so that a metrics collector can use it
// without the plugin's parser, which imports netlink.
package iprange

import (
	"net/netip"
	"slices"
)

// A Range is a part of a subnet: all addresses from First to Last, both included. The
// Gateway is never handed out if it lies in the range; the zero Gateway is none. A Range
// without First or Last, or with a Last below its First, is empty.
type Range struct{ First, Last, Gateway netip.Addr }

// A Set is one or several ranges that do not overlap. A container gets one address of each
// set of its network. A network with both address families has two sets.
type Set []Range

// Contains reports whether an address lies in the range. It may be the gateway.
func (r Range) Contains(ip netip.Addr) bool {
	return ip.IsValid() && ip.BitLen() == r.First.BitLen() && r.First.Compare(ip) <= 0 && ip.Compare(r.Last) <= 0
}

// Has reports whether host-local may hand out an address from the range.
func (r Range) Has(ip netip.Addr) bool { return r.Contains(ip) && ip != r.Gateway }

// Size returns the number of addresses for containers in the range, rounded above 2^53.
func (r Range) Size() float64 {
	if !r.Contains(r.Last) {
		return 0
	}
	size, last := 0.0, r.Last.AsSlice()
	for i, first := range r.First.AsSlice() {
		size = size*256 + float64(last[i]) - float64(first)
	}
	if r.Contains(r.Gateway) {
		return size
	}
	return size + 1
}

// Has reports whether host-local may hand out an address from one of the ranges.
func (s Set) Has(ip netip.Addr) bool {
	return slices.ContainsFunc(s, func(r Range) bool { return r.Has(ip) })
}

// Size returns the number of addresses for containers in the set, rounded above 2^53.
func (s Set) Size() (n float64) {
	for _, r := range s {
		n += r.Size()
	}
	return n
}
