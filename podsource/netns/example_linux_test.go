// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// If the agent can't read the node's processes, Pods returns an error.
func ExampleNew() {
	kernel, err := netns.New(netns.Options{Proc: "/no/such/directory"})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := kernel.Pods(context.Background())
	fmt.Println(len(answer.Pods), err)
	// Output:
	// 0 reading process 1: stat /no/such/directory/1/ns/pid: no such file or directory; is a procfs mounted at /no/such/directory, and without hidepid?
}

// An agent in a container, on a node that is itself a container, as in kind.
func ExampleOptions() {
	kernel, err := netns.New(netns.Options{
		Proc:       "/proc",
		HostNetNS:  "/proc/1/ns/net",
		Nested:     true,
		Networks:   []string{"podnet"}, // its main plugin, bridge, configures addresses in the namespace
		LongestADD: 30 * time.Minute,   // that of gc.Options.StartingFor
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The cache of CNI results asks the kernel which namespaces exist.
	cache, err := cnicache.New(cnicache.Options{Living: kernel.Living})
	if err != nil {
		fmt.Println(err)
		return
	}
	source := podsource.Union(kernel, cache)
	fmt.Println(source != nil, kernel.Rank() < cache.Rank())
	// Output: true true
}
