// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The kernel stands beside the sources that know names and containers. Here its
// answer is known in advance.
func Example() {
	runtime := podsource.Static{{UID: "6ba7b810", ContainerIDs: []string{"ee3b0f0c"}}}
	kernel := podsource.Static{
		{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}},
		{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.3")}}, // its record is lost
	}
	pods, err := podsource.Union(runtime, kernel).Pods(context.Background())
	for _, p := range pods {
		fmt.Println(p.ContainerIDs, p.IPs)
	}
	fmt.Println(err)
	// Output:
	// [ee3b0f0c] []
	// [] [10.244.1.2]
	// [] [10.244.1.3]
	// <nil>
}
