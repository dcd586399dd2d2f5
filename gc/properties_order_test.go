// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A leaf is a source in a random tree of sources. It records when it is asked.
type leaf struct {
	rank  podsource.Rank
	err   error
	asked *[]*leaf
}

func (l *leaf) Rank() podsource.Rank { return l.rank }

func (l *leaf) Pods(context.Context) (podsource.Answer, error) {
	*l.asked = append(*l.asked, l)
	return podsource.Answer{Pods: []podsource.Pod{{NamespacedName: types.NamespacedName{Name: "agent"}}}}, l.err
}

// A tree is a random nesting of Union, Fallback, Require and AllowEmpty.
type tree struct {
	rnd    *rand.Rand
	leaves []*leaf
	asked  []*leaf
}

// A member is one of a union, with its leaves in the order in which they must be asked.
type member struct {
	rank   podsource.Rank
	leaves []*leaf
}

// union returns a union and its members, in the order in which they must be asked.
func (t *tree) union(depth int) (podsource.Source, []member) {
	arguments := make([]podsource.Source, 1+t.rnd.IntN(3))
	var all []member
	for i := range arguments {
		var members []member
		if depth > 0 && maybe(t.rnd, 3) {
			arguments[i], members = t.union(depth - 1)
		} else {
			members = make([]member, 1)
			arguments[i], members[0] = t.single(depth)
		}
		all = append(all, members...)
	}
	slices.SortStableFunc(all, func(a, b member) int { return cmp.Compare(a.rank, b.rank) })
	return podsource.Union(arguments...), all
}

// single returns a source that is no union.
func (t *tree) single(depth int) (podsource.Source, member) {
	l := &leaf{rank: podsource.Rank(1 + t.rnd.IntN(5)), asked: &t.asked}
	t.leaves = append(t.leaves, l)
	m := member{l.rank, []*leaf{l}}
	if depth == 0 {
		return l, m
	}
	switch t.rnd.IntN(3) {
	case 0:
		return podsource.AllowEmpty(podsource.Require(l, types.NamespacedName{Name: "agent"})), m
	case 1:
		l.err = podsource.ErrNotHere
		then, members := t.union(depth - 1)
		for _, next := range members {
			m.leaves = append(m.leaves, next.leaves...)
		}
		m.rank = min(m.rank, members[0].rank)
		return podsource.Fallback(l, then), m
	}
	return l, m
}

// U4: sources are asked in the order of their ranks, also in nested unions, each once. A
// Fallback is asked as one, at the lowest rank of its sources.
func TestU4OrderOfAsking(t *testing.T) {
	forTrees(t, func(_ *rand.Rand, source podsource.Source, members []member, tr *tree) string {
		answer, err := source.Pods(context.Background())
		here := slices.DeleteFunc(slices.Clone(tr.leaves), func(l *leaf) bool { return l.err != nil })
		var want []*leaf
		for _, m := range members {
			want = append(want, m.leaves...)
		}
		if err != nil || len(answer.Members()) != len(here) || !slices.Equal(tr.asked, want) {
			return fmt.Sprintf("%d of %d answered, %d of %d were asked, or not in order: %v",
				len(answer.Members()), len(here), len(tr.asked), len(tr.leaves), err)
		}
		return ""
	})
}

// U4: an error of any source is an error of the whole, and no other source is asked after it.
func TestU4ErrorOfASource(t *testing.T) {
	forTrees(t, func(rnd *rand.Rand, source podsource.Source, _ []member, tr *tree) string {
		failing := tr.leaves[rnd.IntN(len(tr.leaves))]
		failing.err = errors.New("it fails")
		if maybe(rnd, 2) {
			failing.err = podsource.ErrIncomplete
		}
		_, err := source.Pods(context.Background())
		switch {
		case err == nil:
			return "the error was lost"
		case errors.Is(err, podsource.ErrNotHere):
			return fmt.Sprintf("a source that is here returned ErrNotHere: %v", err)
		case tr.asked[len(tr.asked)-1] != failing:
			return "others were asked after the error"
		}
		return ""
	})
}

func forTrees(t *testing.T, check func(*rand.Rand, podsource.Source, []member, *tree) string) {
	t.Parallel()
	for seed := *propFirst; seed < *propFirst+orUsual(*propCases, 25_000, 5_000); seed++ {
		rnd := rand.New(rand.NewPCG(seed, 4))
		tr := &tree{rnd: rnd}
		source, members := tr.union(4)
		if wrong := check(rnd, source, members, tr); wrong != "" {
			t.Fatalf("case %d: %s", seed, wrong)
		}
	}
}
