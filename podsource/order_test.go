// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A ranked source notes when it is asked.
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

// TestRank: members are asked by rank, whatever the order of arguments and
// however they are nested, and nobody is asked after an error.
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
		{"those of one rank in the order of arguments", Union(cache2, namespaces, cache), "namespaces cache2 cache"},
		{"who has no rank is asked last", Union(unranked, kubelet, runtime), "runtime unranked kubelet"},
		{"a union between two members of another", Union(kubelet, Union(runtime, adds), namespaces), "adds namespaces runtime kubelet"},
		{"two unions in turn", Union(Union(kubelet, adds), Union(runtime, namespaces)), "adds namespaces runtime kubelet"},
		{"through Require", Union(require(kubelet, "kubelet"), require(Union(runtime, adds), "adds"), namespaces), "adds namespaces runtime kubelet"},
		{"through AllowEmpty", Union(AllowEmpty(kubelet), AllowEmpty(Union(runtime, adds)), namespaces), "adds namespaces runtime kubelet"},
		{"through Fallback", Union(Fallback(kubelet, unranked), Fallback(runtime, unranked), namespaces), "namespaces runtime kubelet"},
		{"the second choice has its own rank", Union(kubelet, Fallback(noCache, runtime), cache), "no-cache cache runtime kubelet"},
		{"a union as the second choice, its members each by their rank",
			Union(kubelet, Fallback(noCache, Union(unranked, runtime)), cache2), "no-cache cache2 runtime kubelet unranked"},
		{"a union as the first choice", Union(cache, Fallback(Union(kubelet, adds), unranked), namespaces), "adds namespaces cache kubelet"},
		{"a first choice is asked as early as the second would be, so that this is not asked after its turn",
			Union(unranked, Fallback(noKubelet, runtime), namespaces), "namespaces no-kubelet runtime unranked"},
		{"... as early as the earliest member of a union would be", Union(namespaces, Fallback(noKubelet, Union(adds, kubelet))), "no-kubelet adds namespaces kubelet"},
		{"... as early as either choice of a fallback: the first", Union(namespaces, Fallback(noKubelet, Fallback(adds, kubelet))), "no-kubelet adds namespaces"},
		{"... the second", Union(namespaces, Fallback(noKubelet, Fallback(noRuntime, adds))), "no-kubelet no-runtime adds namespaces"},
		{"... and so is the first choice of the first", Union(namespaces, Fallback(Fallback(noKubelet, noRuntime), adds)), "no-kubelet no-runtime adds namespaces"},
		{"all of them nested", AllowEmpty(require(Union(Fallback(noKubelet, require(Union(kubelet, Fallback(noCache, adds)), "kubelet")), runtime), "runtime")),
			"no-kubelet no-cache adds runtime kubelet"},

		{"after an error nobody is asked", Union(kubelet, broken, cache), "cache broken"},
		{"after an error in a union within", Union(kubelet, Union(runtime, incomplete), namespaces), "namespaces incomplete"},
		{"after an error within, the union around it asks nobody either", Union(kubelet, Union(broken, unranked), runtime), "broken"},
		{"after a member that is not here, of which there is no other", Union(kubelet, noCache, runtime), "no-cache"},
		{"after a required pod is missing", Union(kubelet, require(cache, "runtime"), runtime), "cache"},
		{"after the second choice fails", Union(kubelet, Fallback(noCache, broken), unranked), "no-cache broken"},
	} {
		for range 2 { // asking changes nothing
			asked = nil
			_, _ = row.source.Pods(t.Context()) // TestUnion and others look at the answers
			if got := strings.Join(asked, " "); got != row.want {
				t.Errorf("asked %s, want %s: %s", got, row.want, row.reason)
			}
		}
	}
}

// A union that was folded, Union(Union(Union(a, b), c), d), costs no more than the
// square of its depth: with a doubling at each level this would not end.
func TestFoldedUnion(t *testing.T) {
	one := Static{{UID: "a"}}
	var folded Source = one
	for range 60 {
		folded = Union(folded, one)
	}
	answer, err := folded.Pods(t.Context())
	if err != nil || len(answer.Members()) != 61 {
		t.Errorf("%d members answered, want 61: %v", len(answer.Members()), err)
	}
}
