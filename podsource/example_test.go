// SPDX-License-Identifier: Apache-2.0

package podsource_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"k8s.io/apimachinery/pkg/types"
)

// Two sources have the same pod: the API server knows its address, the runtime its
// sandbox. Both answers are kept.
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
	for _, member := range answer.Members() {
		for _, p := range member.Pods {
			fmt.Println(p.UID, p.Name, p.ContainerIDs, p.IPs, err)
		}
	}
	// Output:
	// 6ba7b810 web [] [10.244.1.2] <nil>
	// 6ba7b810  [ee3b0f0c] [] <nil>
	// 7c9e6679  [5c7b9a1e] [] <nil>
}

// If kubelet does not serve its list of pods, the API server is asked. A kubelet that is
// not ready yet must not be replaced by a source that knows less.
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

// The agent certainly runs on this node. A list without it is incomplete, or the list of
// another node.
func ExampleRequire() {
	agent := types.NamespacedName{Namespace: "kube-system", Name: "agent-x7k2p"}
	anotherNode := podsource.Static{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}}}
	_, err := podsource.Require(anotherNode, agent).Pods(context.Background())
	fmt.Println(errors.Is(err, podsource.ErrIncomplete), err)
	// Output:
	// true list of pods is incomplete: 1 pods, and the required kube-system/agent-x7k2p does not run among them; is the node's name right?
}

// A node that may really have no pods: the caller asserts that an empty list is true.
func ExampleAllowEmpty() {
	answer, err := podsource.AllowEmpty(podsource.Static{}).Pods(context.Background())
	fmt.Println(len(answer.Pods), answer.Authoritative, err)
	// Output: 0 true <nil>
}

// A CNI server knows which containers it has set up, and which ADDs it is serving. So its
// answer declares more than a list of pods. For an hour it did not record attachments, and
// learned about the sandboxes of that time from a runtime afterwards.
func ExampleAnswerFunc() {
	now, networks := time.Now(), []string{"podnet"} // those whose ADDs it serves
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{
			Source:        "cniserver",
			Pods:          []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}}},
			Networks:      networks,
			Names:         podsource.AnyContainer,
			AtOnce:        true,
			SeesADDs:      networks,
			Authoritative: true,
			Gaps:          []podsource.Gap{{From: now.Add(-2 * time.Hour), To: now.Add(-time.Hour), But: podsource.SandboxContainers}},
			Note:          "one hour was not recorded",
		}, nil
	})
	answer, err := source.Pods(context.Background())
	fmt.Println(answer.Source, len(answer.Pods), err)
	// Output: cniserver 1 <nil>
}

// Three pods as Kubernetes reports them, and an attachment from a cache. Each field may be
// empty; the fewer are set, the more is kept.
func ExamplePod() {
	now := time.Now()
	pods := podsource.Static{
		{ // runs, with a second network of which one address could not be read
			NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "6ba7b810",
			IPs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}, MoreIPs: true, StartedAt: now.Add(-time.Hour),
		},
		{ // has ended: it holds its address for five minutes more
			NamespacedName: types.NamespacedName{Namespace: "default", Name: "job"},
			IPs:            []netip.Addr{netip.MustParseAddr("10.244.1.3")}, Finished: true, FinishedAt: now,
		},
		{ // is in the node's network: its address is the node's
			NamespacedName: types.NamespacedName{Namespace: "kube-system", Name: "proxy"}, HostNetwork: true,
		},
		{ // an attachment in a cache, whose container may or may not be live
			ContainerIDs: []string{"ee3b0f0c"}, Network: "podnet", Unproven: true, Origin: "cache file podnet-ee3b0f0c-eth0",
		},
	}
	for _, p := range pods {
		fmt.Println(p.Name, p.HasFinished(), p.HostNetwork, p.Unproven)
	}
	// Output:
	// web false false false
	// job true false false
	// proxy false true false
	//  false false true
}

// An agent that keeps a store of its own. Until the store is restored, the source is not ready.
func ExampleAttachments() {
	var store map[string]podsource.Attachment // by interface, nil until it is restored
	source := podsource.Attachments([]string{"podnet"}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) {
		if store == nil {
			return nil, fmt.Errorf("%w: the store is not restored yet", podsource.ErrIncomplete)
		}
		return slices.Collect(maps.Values(store)), nil
	})
	_, err := source.Pods(context.Background())
	fmt.Println(errors.Is(err, podsource.ErrIncomplete))
	// Output: true
}

// The list of a runtime, as crictl pods shows it.
func ExampleSandboxes() {
	sandbox := strings.Repeat("ee3b0f0c", 8) // a kind of containers is told by their IDs
	source := podsource.Sandboxes(func(context.Context) ([]podsource.Pod, error) {
		return []podsource.Pod{{UID: "6ba7b810", ContainerIDs: []string{sandbox}}}, nil
	})
	answer, err := source.Pods(context.Background())
	fmt.Println(answer.Networks, answer.AtOnce, err)
	fmt.Println(answer.Names == podsource.SandboxContainers, answer.Names.Has(sandbox), answer.Names.Has("default-"+sandbox))
	// Output:
	// [*] false <nil>
	// true true false
}

// A runtimeSource has a rank: it is asked after the kernel, which sees the ADDs in flight,
// and before kubelet.
type runtimeSource struct{ podsource.Source }

func (runtimeSource) Rank() podsource.Rank { return podsource.RankRuntime }

// A runtime may list a sandbox some minutes after its ADD. Union calls its sources in the
// order of their ranks, whatever the order of its arguments.
func ExampleRank() {
	runtime := runtimeSource{podsource.Static{{ContainerIDs: []string{"ee3b0f0c"}}}}
	answer, err := podsource.Union(podsource.Static{{UID: "6ba7b810"}}, runtime).Pods(context.Background())
	for _, part := range answer.Parts {
		fmt.Println(part.Source, part.Pods[0].UID, part.Pods[0].ContainerIDs, part.Err, part.Took >= 0)
	}
	fmt.Println(runtime.Rank() < podsource.RankPods, err)
	// Output:
	// source 1  [ee3b0f0c] <nil> true
	// source 2 6ba7b810 [] <nil> true
	// true <nil>
}

// A cache of CNI results: its entries, also those of containers that have ended.
func ExampleAnswer() {
	now := time.Now()
	cache := podsource.Answer{
		Source: "cache", AsOf: now, Supplementary: true,
		Cache: &podsource.Cache{
			Entries: []podsource.Attachment{{Network: "podnet", ContainerID: "ee3b0f0c"}},
			Since:   map[string]time.Time{"podnet": now.Add(-time.Hour)},
		},
	}
	fmt.Println(cache.Source, podsource.Covers(cache.Networks, "podnet"), len(cache.Cache.Entries))
	// Output: cache false 1
}

// A source with the name of another node: a later call does not help, so the start-up hook
// of package gc does not wait for it.
func ExampleSource() {
	source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return nil, fmt.Errorf("node-2 is not this node: %w", podsource.ErrPermanent)
	})
	_, err := source.Pods(context.Background())
	fmt.Println(errors.Is(err, podsource.ErrPermanent), err)
	// Output: true node-2 is not this node: asking again will not help
}
