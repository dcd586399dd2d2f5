// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"fmt"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// Where the agent can't see the node's processes, it is told so.
func ExampleNew() {
	kernel, err := netns.New(netns.Options{Proc: "/no/such/directory"})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := kernel.Pods(context.Background())
	fmt.Println(len(answer.Pods), err)
	// Output:
	// 0 looking at process 1: stat /no/such/directory/1/ns/pid: no such file or directory; is a procfs mounted at /no/such/directory, and without hidepid?
}
