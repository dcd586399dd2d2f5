// SPDX-License-Identifier: Apache-2.0

package podsource_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"k8s.io/apimachinery/pkg/types"
)

// Two sources know of one pod: the API server its address, the runtime its
// sandbox. Their answers stand side by side.
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
	answer, err := podsource.Union(api, runtime).Pods(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, member := range answer.Members() {
		for _, p := range member.Pods {
			fmt.Println(p.UID, p.Name, p.ContainerIDs, p.IPs)
		}
	}
	// Output:
	// 6ba7b810 web [] [10.244.1.2]
	// 6ba7b810  [ee3b0f0c] []
	// 7c9e6679  [5c7b9a1e] []
}

// Where kubelet does not list its pods, the API server is asked. A kubelet that
// is not ready yet must not be replaced by a source that knows less.
func ExampleFallback() {
	api := podsource.Static{{UID: "6ba7b810"}}
	notServed := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return nil, fmt.Errorf("kubelet has no such socket: %w", podsource.ErrNotHere)
	})
	answer, err := podsource.Fallback(notServed, api).Pods(context.Background())
	fmt.Println(answer.Pods[0].UID, err)

	notReady := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return nil, fmt.Errorf("kubelet was just started: %w", podsource.ErrIncomplete)
	})
	answer, err = podsource.Fallback(notReady, api).Pods(context.Background())
	fmt.Println(len(answer.Pods), err)
	// Output:
	// 6ba7b810 <nil>
	// 0 kubelet was just started: list of pods is incomplete
}

// The agent runs on this node as surely as it asks: a list without it is the
// list of another node, or of none.
func ExampleRequire() {
	agent := types.NamespacedName{Namespace: "kube-system", Name: "agent-x7k2p"}
	anotherNode := podsource.Static{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}}}
	_, err := podsource.Require(anotherNode, agent).Pods(context.Background())
	fmt.Println(errors.Is(err, podsource.ErrIncomplete))
	fmt.Println(err)
	// Output:
	// true
	// list of pods is incomplete: 1 pods, and the required kube-system/agent-x7k2p does not run among them; is the node's name right?
}

// A node that may really have no pods: the caller asserts that an empty list is
// to be believed.
func ExampleAllowEmpty() {
	answer, err := podsource.AllowEmpty(podsource.Static{}).Pods(context.Background())
	fmt.Println(len(answer.Pods), answer.Authoritative, err)
	// Output: 0 true <nil>
}

func ExampleFunc() {
	source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		return []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}}}, ctx.Err()
	})
	answer, err := source.Pods(context.Background())
	fmt.Println(len(answer.Pods), err)
	// Output: 1 <nil>
}

// A CNI server knows which containers it has set up, and which ADDs it is
// serving at this moment. With that it says more than a list of pods.
func ExampleAnswerFunc() {
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		networks := []string{"podnet"} // those whose ADDs it serves
		return podsource.Answer{
			Source:        "cniserver",
			Pods:          []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}}},
			Networks:      networks,
			Names:         []podsource.Names{{Form: podsource.AnyForm, Networks: networks}},
			SeesADDs:      true,
			Authoritative: true,
		}, nil
	})
	answer, err := source.Pods(context.Background())
	fmt.Println(answer.Source, len(answer.Pods), err)
	// Output: cniserver 1 <nil>
}
