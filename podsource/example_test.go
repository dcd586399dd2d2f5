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
// answer declares more than a list of pods.
func ExampleAnswerFunc() {
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		networks := []string{"podnet"} // those whose ADDs it serves
		return podsource.Answer{
			Source:        "cniserver",
			Pods:          []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}}},
			Networks:      networks,
			Names:         podsource.AnyContainer,
			AtOnce:        true,
			SeesADDs:      networks,
			Authoritative: true,
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
	store := map[string]podsource.Attachment{"ee3b0f0c": {Network: "podnet", ContainerID: "ee3b0f0c", IfName: "eth0"}}
	restored := false
	source := podsource.Attachments([]string{"podnet"}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) {
		if !restored {
			return nil, fmt.Errorf("%w: the store is not restored yet", podsource.ErrIncomplete)
		}
		return slices.Collect(maps.Values(store)), nil
	})
	for range 2 {
		answer, err := source.Pods(context.Background())
		fmt.Println(len(answer.Pods), errors.Is(err, podsource.ErrIncomplete))
		restored = true
	}
	// Output:
	// 0 true
	// 1 false
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
func ExampleRanked() {
	var runtime podsource.Ranked = runtimeSource{podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		fmt.Println("the runtime is asked")
		return podsource.Answer{
			Source: "runtime",
			Pods:   []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}}},
			Names:  podsource.SandboxContainers, Networks: []string{podsource.EveryNetwork},
		}, nil
	})}
	kubelet := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		fmt.Println("kubelet is asked")
		return podsource.Answer{Source: "kubelet", Networks: []string{podsource.EveryNetwork}, Pods: []podsource.Pod{{UID: "6ba7b810"}}}, nil
	})
	answer, err := podsource.Union(kubelet, runtime).Pods(context.Background())
	for _, part := range answer.Parts {
		fmt.Println(part.Source, len(part.Pods), part.Err, part.Took >= 0)
	}
	fmt.Println(runtime.Rank() < podsource.RankPods, err)
	// Output:
	// the runtime is asked
	// kubelet is asked
	// runtime 1 <nil> true
	// kubelet 1 <nil> true
	// true <nil>
}

// A record that an agent did not keep for an hour, and a cache of CNI results. Neither
// releases a reservation that it may not know of.
func ExampleAnswer() {
	now := time.Now()
	record := podsource.Answer{
		Source:   "record",
		Networks: []string{"podnet"},
		Names:    podsource.AnyContainer,
		AtOnce:   true,
		// Sandboxes were learned from a runtime afterwards.
		Gaps: []podsource.Gap{{From: now.Add(-2 * time.Hour), To: now.Add(-time.Hour), But: podsource.SandboxContainers}},
		Note: "one hour was not recorded",
	}
	cache := podsource.Answer{
		Source: "cache", AsOf: now, Supplementary: true,
		Cache: &podsource.Cache{
			Entries: []podsource.Attachment{{Network: "podnet", ContainerID: "ee3b0f0c"}},
			Since:   map[string]time.Time{"podnet": now.Add(-time.Hour)},
		},
	}
	for _, a := range []podsource.Answer{record, cache} {
		fmt.Println(a.Source, a.Networks, len(a.Gaps), a.Cache != nil, a.Note)
	}
	// Output:
	// record [podnet] 1 false one hour was not recorded
	// cache [] 0 true
}

// A source with the name of another node: a later call does not help, so the start-up hook
// of package gc does not wait for it.
func ExampleSource() {
	var source podsource.Source = podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return nil, fmt.Errorf("node-2 is not this node: %w", podsource.ErrPermanent)
	})
	_, err := source.Pods(context.Background())
	fmt.Println(errors.Is(err, podsource.ErrPermanent), err)
	// Output: true node-2 is not this node: asking again will not help
}
