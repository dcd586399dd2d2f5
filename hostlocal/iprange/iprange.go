// SPDX-License-Identifier: Apache-2.0

// Package iprange says which addresses host-local hands out from its ranges, and how
// many those are. It imports nothing beyond the standard library, so that a collector of
// metrics can use it without the plugin's parser, which brings netlink.
package iprange

import (
	"math/big"
	"net/netip"
	"slices"
)

// A Range is a part of a subnet: all addresses from First to Last. Both are part of it.
// The Gateway is never handed out where it lies inside; the zero Gateway is none. A Range
// whose Last is below its First, or that lacks one of them, is empty.
type Range struct{ First, Last, Gateway netip.Addr }

// A Set is what a container gets one address of: one or several ranges, which do not
// overlap. A network with addresses of both families has two.
type Set []Range

// Contains reports whether an address lies in the range. It may be the gateway.
func (r Range) Contains(ip netip.Addr) bool {
	return ip.IsValid() && ip.BitLen() == r.First.BitLen() && r.First.Compare(ip) <= 0 && ip.Compare(r.Last) <= 0
}

// Has reports whether host-local may hand out an address from the range.
func (r Range) Has(ip netip.Addr) bool { return r.Contains(ip) && ip != r.Gateway }

// Size is how many addresses the range has for containers. More than 2^53 are rounded.
func (r Range) Size() float64 {
	if !r.Contains(r.Last) {
		return 0
	}
	first, last := new(big.Int).SetBytes(r.First.AsSlice()), new(big.Int).SetBytes(r.Last.AsSlice())
	size, _ := last.Sub(last, first).Float64()
	if r.Contains(r.Gateway) {
		return size
	}
	return size + 1
}

// Has reports whether host-local may hand out an address from one of the ranges.
func (s Set) Has(ip netip.Addr) bool {
	return slices.ContainsFunc(s, func(r Range) bool { return r.Has(ip) })
}

// Size is how many addresses the set has for containers. More than 2^53 are rounded.
func (s Set) Size() (n float64) {
	for _, r := range s {
		n += r.Size()
	}
	return n
}
