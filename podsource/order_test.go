// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A ranked source appends its name to asked in each call.
type ranked struct {
	name  string
	rank  Rank
	err   error
	asked *[]string
}

func (r ranked) Rank() Rank { return r.rank }

func (r ranked) Pods(context.Context) (Answer, error) {
	*r.asked = append(*r.asked, r.name)
	return Answer{Source: r.name, Pods: []Pod{named(r.name)}}, r.err
}

// TestRank: members are called by rank, whatever the order of arguments and the nesting,
// and none is called after an error.
func TestRank(t *testing.T) {
	var asked []string
	source := func(name string, rank Rank, err error) Source { return ranked{name, rank, err, &asked} }
	var (
		adds, namespaces = source("adds", RankADDs, nil), source("namespaces", RankAddresses, nil)
		cache, cache2    = source("cache", RankCache, nil), source("cache2", RankCache, nil)
		runtime, kubelet = source("runtime", RankRuntime, nil), source("kubelet", RankPods, nil)
		noCache          = source("no-cache", RankCache, ErrNotHere)
		noKubelet        = source("no-kubelet", RankPods, ErrNotHere)
		noRuntime        = source("no-runtime", RankRuntime, ErrNotHere)
		broken           = source("broken", RankRuntime, errors.New("broken"))
		incomplete       = source("incomplete", RankCache, ErrIncomplete)
		unranked         = Func(func(context.Context) ([]Pod, error) {
			asked = append(asked, "unranked")
			return nil, nil
		})
	)
	require := func(s Source, name string) Source {
		return Require(s, types.NamespacedName{Namespace: "default", Name: name})
	}
	for _, row := range []struct {
		reason string
		source Source
		want   string
	}{
		{"by rank", Union(kubelet, runtime, cache, namespaces, adds), "adds namespaces cache runtime kubelet"},
		{"members of one rank in the order of arguments", Union(cache2, namespaces, cache), "namespaces cache2 cache"},
		{"a source without a rank is called last", Union(unranked, kubelet, runtime), "runtime unranked kubelet"},
		{"a nested union between two members", Union(kubelet, Union(runtime, adds), namespaces), "adds namespaces runtime kubelet"},
		{"the members of two nested unions alternate", Union(Union(kubelet, adds), Union(runtime, namespaces)), "adds namespaces runtime kubelet"},
		{"through Require", Union(require(kubelet, "kubelet"), require(Union(runtime, adds), "adds"), namespaces), "adds namespaces runtime kubelet"},
		{"through AllowEmpty", Union(AllowEmpty(kubelet), AllowEmpty(Union(runtime, adds)), namespaces), "adds namespaces runtime kubelet"},
		{"through Fallback", Union(Fallback(kubelet, unranked), Fallback(runtime, unranked), namespaces), "namespaces runtime kubelet"},
		{"the second choice has its own rank", Union(kubelet, Fallback(noCache, runtime), cache), "no-cache cache runtime kubelet"},
		{"a union as the second choice: each member by its rank",
			Union(kubelet, Fallback(noCache, Union(unranked, runtime)), cache2), "no-cache cache2 runtime kubelet unranked"},
		{"a union as the first choice", Union(cache, Fallback(Union(kubelet, adds), unranked), namespaces), "adds namespaces cache kubelet"},
		{"a first choice is called by the rank of the second, so that the second is not called too late",
			Union(unranked, Fallback(noKubelet, runtime), namespaces), "namespaces no-kubelet runtime unranked"},
		{"... by the lowest rank in a union", Union(namespaces, Fallback(noKubelet, Union(adds, kubelet))), "no-kubelet adds namespaces kubelet"},
		{"... by the lowest rank in a fallback: its first choice", Union(namespaces, Fallback(noKubelet, Fallback(adds, kubelet))), "no-kubelet adds namespaces"},
		{"... its second choice", Union(namespaces, Fallback(noKubelet, Fallback(noRuntime, adds))), "no-kubelet no-runtime adds namespaces"},
		{"... and the same for a fallback as the first choice", Union(namespaces, Fallback(Fallback(noKubelet, noRuntime), adds)), "no-kubelet no-runtime adds namespaces"},
		{"all of them nested", AllowEmpty(require(Union(Fallback(noKubelet, require(Union(kubelet, Fallback(noCache, adds)), "kubelet")), runtime), "runtime")),
			"no-kubelet no-cache adds runtime kubelet"},

		{"after an error no source is called", Union(kubelet, broken, cache), "cache broken"},
		{"after an error in a nested union", Union(kubelet, Union(runtime, incomplete), namespaces), "namespaces incomplete"},
		{"after an error in a nested union, the outer one calls no source either", Union(kubelet, Union(broken, unranked), runtime), "broken"},
		{"after a member that does not exist and has no fallback", Union(kubelet, noCache, runtime), "no-cache"},
		{"after a missing required pod", Union(kubelet, require(cache, "runtime"), runtime), "cache"},
		{"after an error of the second choice", Union(kubelet, Fallback(noCache, broken), unranked), "no-cache broken"},
	} {
		for range 2 { // the second call is like the first
			asked = nil
			_, _ = row.source.Pods(t.Context()) // TestUnion and others check the answers
			if got := strings.Join(asked, " "); got != row.want {
				t.Errorf("asked %s, want %s: %s", got, row.want, row.reason)
			}
		}
	}
}

// A left-nested union, Union(Union(Union(a, b), c), d), takes at most quadratic time. If
// each level doubled the time, this test would not end.
func TestNestedUnionIsQuadratic(t *testing.T) {
	one := Static{{UID: "a"}}
	var nested Source = one
	for range 60 {
		nested = Union(nested, one)
	}
	answer, err := nested.Pods(t.Context())
	if err != nil || len(answer.Members()) != 61 {
		t.Errorf("%d members answered, want 61: %v", len(answer.Members()), err)
	}
}
