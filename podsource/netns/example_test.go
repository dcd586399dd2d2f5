// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The kernel is asked together with sources that know names and containers. Here its
// answer is made up.
func Example() {
	runtime := podsource.Static{{UID: "6ba7b810", ContainerIDs: []string{"ee3b0f0c"}}}
	kernel := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{Source: "netns", Supplementary: true, SeesAddresses: true, Pods: []podsource.Pod{
			{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}, Origin: "network namespace 4026532255, of process 4242"},
			{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.3")}, Origin: "network namespace 4026532258, of process 4711"}, // the runtime lost its record
		}}, nil
	})
	answer, err := podsource.Union(runtime, kernel).Pods(context.Background())
	for _, member := range answer.Members() {
		for _, p := range member.Pods {
			fmt.Printf("%v %v %q\n", p.ContainerIDs, p.IPs, p.Origin)
		}
	}
	fmt.Println(err)
	// Output:
	// [ee3b0f0c] [] ""
	// [] [10.244.1.2] "network namespace 4026532255, of process 4242"
	// [] [10.244.1.3] "network namespace 4026532258, of process 4711"
	// <nil>
}
