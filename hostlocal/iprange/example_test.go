// SPDX-License-Identifier: Apache-2.0

package iprange_test

import (
	"fmt"
	"net/netip"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// A network that hands out a part of its subnet, without the gateway.
func Example() {
	r := iprange.Range{
		First:   netip.MustParseAddr("10.244.1.1"),
		Last:    netip.MustParseAddr("10.244.1.254"),
		Gateway: netip.MustParseAddr("10.244.1.1"),
	}
	fmt.Println(r.Contains(r.Gateway), r.Has(r.Gateway), r.Size())

	// A set may have several ranges. A container gets one address of the set.
	set := iprange.Set{r, {First: netip.MustParseAddr("10.244.9.10"), Last: netip.MustParseAddr("10.244.9.19")}}
	fmt.Println(set.Has(netip.MustParseAddr("10.244.9.15")), set.Size())
	// Output:
	// true false 253
	// true 263
}
