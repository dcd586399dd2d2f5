// SPDX-License-Identifier: Apache-2.0

package podsource_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"k8s.io/apimachinery/pkg/types"
)

// Two witnesses of one pod: the API server knows its address, the runtime its
// sandbox.
func ExampleUnion() {
	api := podsource.Static{{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"},
		UID:            "6ba7b810",
		IPs:            []netip.Addr{netip.MustParseAddr("10.244.1.2")},
	}}
	runtime := podsource.Static{
		{UID: "6ba7b810", ContainerIDs: []string{"ee3b0f0c"}},
		{UID: "7c9e6679", ContainerIDs: []string{"5c7b9a1e"}}, // force-deleted, and still running
	}
	pods, err := podsource.Union(api, runtime).Pods(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range pods {
		fmt.Println(p.UID, p.Name, p.ContainerIDs, p.IPs)
	}
	// Output:
	// 6ba7b810 web [ee3b0f0c] [10.244.1.2]
	// 7c9e6679  [5c7b9a1e] []
}

// A node's agent prefers its own record, which the first start after an upgrade
// does not find.
func ExampleFallback() {
	record := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		_, err := os.ReadFile("no-such-record")
		return nil, err
	})
	runtime := podsource.Static{{ContainerIDs: []string{"ee3b0f0c"}}}
	pods, err := podsource.Fallback(record, runtime).Pods(context.Background())
	fmt.Println(pods[0].ContainerIDs, err)

	unsure := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return nil, fmt.Errorf("cache has not synced: %w", podsource.ErrIncomplete)
	})
	pods, err = podsource.Fallback(unsure, runtime).Pods(context.Background())
	fmt.Println(len(pods), err)
	// Output:
	// [ee3b0f0c] <nil>
	// 0 cache has not synced: list of pods is incomplete
}

// The agent runs on this node as surely as it asks: a list without it is the
// list of another node, or of none.
func ExampleRequire() {
	agent := types.NamespacedName{Namespace: "kube-system", Name: "agent-x7k2p"}
	anotherNode := podsource.Static{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}}}
	pods, err := podsource.Require(anotherNode, agent).Pods(context.Background())
	fmt.Println(len(pods), errors.Is(err, podsource.ErrIncomplete))
	fmt.Println(err)
	// Output:
	// 0 true
	// list of pods is incomplete: 1 pods, and the required kube-system/agent-x7k2p is not among them; is the node's name right?
}

func ExampleFunc() {
	source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		return []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}}}, ctx.Err()
	})
	pods, err := source.Pods(context.Background())
	fmt.Println(len(pods), err)
	// Output: 1 <nil>
}
