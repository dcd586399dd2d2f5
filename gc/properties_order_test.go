// SPDX-License-Identifier: Apache-2.0

package gc

import (
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
	id    int
	rank  podsource.Rank
	order podsource.Rank // its rank, or a lower one of a source that may be asked in its place
	after []int          // the leaves that must return ErrNotHere before it is asked
	err   error
	asked *[]*leaf
}

func (l *leaf) Rank() podsource.Rank { return l.rank }

func (l *leaf) Pods(context.Context) (podsource.Answer, error) {
	*l.asked = append(*l.asked, l)
	return podsource.Answer{Source: fmt.Sprintf("leaf%d", l.id), Pods: []podsource.Pod{{NamespacedName: types.NamespacedName{Name: "agent"}}}}, l.err
}

// A tree is a random nesting of Union, Fallback, Require and AllowEmpty.
type tree struct {
	rnd    *rand.Rand
	leaves []*leaf
	asked  []*leaf
}

func (t *tree) random(depth int, after []int) podsource.Source {
	if depth == 0 || maybe(t.rnd, 4) {
		return t.leaf(after)
	}
	switch t.rnd.IntN(5) {
	case 0:
		return podsource.Require(t.random(depth-1, after), types.NamespacedName{Name: "agent"})
	case 1:
		return podsource.AllowEmpty(t.random(depth-1, after))
	case 2: // of a single source: Fallback acts on nothing else
		first := t.leaf(after)
		if maybe(t.rnd, 2) {
			first.err = fmt.Errorf("leaf%d: %w", first.id, podsource.ErrNotHere)
			then := t.random(depth-1, append(slices.Clone(after), first.id))
			for _, l := range t.leaves[first.id+1:] {
				if len(l.after) == len(after)+1 { // it may be the next to be asked
					first.order = min(first.order, l.order)
				}
			}
			return podsource.Fallback(first, then)
		}
		return podsource.Fallback(first, podsource.Func(func(context.Context) ([]podsource.Pod, error) { panic("asked, although the first source is here") }))
	}
	members := make([]podsource.Source, 1+t.rnd.IntN(3))
	for i := range members {
		members[i] = t.random(depth-1, after)
	}
	return podsource.Union(members...)
}

func (t *tree) leaf(after []int) *leaf {
	rank := podsource.Rank(1 + t.rnd.IntN(5))
	l := &leaf{id: len(t.leaves), rank: rank, order: rank, after: after, asked: &t.asked}
	t.leaves = append(t.leaves, l)
	return l
}

// U4: sources are asked in the order of their ranks, also in nested Union, Fallback and
// Require. Of the sources that must be asked, the next one has the lowest rank. The first
// source of a Fallback has the lowest rank of those that may be asked in its place. Each
// source is asked once.
func TestU4OrderOfAsking(t *testing.T) {
	forTrees(t, func(_ *rand.Rand, source podsource.Source, tr *tree) string {
		answer, err := source.Pods(context.Background())
		if err != nil {
			return err.Error()
		}
		if len(tr.asked) != len(tr.leaves) || len(answer.Members()) != len(slices.DeleteFunc(slices.Clone(tr.leaves), func(l *leaf) bool { return l.err != nil })) {
			return fmt.Sprintf("%d of %d were asked, and %d answered", len(tr.asked), len(tr.leaves), len(answer.Members()))
		}
		place := make(map[int]int)
		for i, l := range tr.asked {
			place[l.id] = i
		}
		for i, l := range tr.asked {
			for _, later := range tr.asked[i+1:] {
				known := !slices.ContainsFunc(later.after, func(id int) bool { return place[id] >= i })
				if known && later.order < l.order {
					return fmt.Sprintf("leaf%d of rank %d was asked before leaf%d of rank %d", l.id, l.order, later.id, later.order)
				}
			}
		}
		return ""
	})
}

// U4: an error of any source is an error of the whole, and no other source is asked after it.
func TestU4ErrorOfASource(t *testing.T) {
	forTrees(t, func(rnd *rand.Rand, source podsource.Source, tr *tree) string {
		failing := tr.leaves[rnd.IntN(len(tr.leaves))]
		failing.err = errors.New("it fails")
		if maybe(rnd, 2) {
			failing.err = podsource.ErrIncomplete
		}
		_, err := source.Pods(context.Background())
		switch {
		case err == nil:
			return fmt.Sprintf("the error of leaf%d was lost", failing.id)
		case errors.Is(err, podsource.ErrNotHere):
			return fmt.Sprintf("a source that is here returned ErrNotHere: %v", err)
		case tr.asked[len(tr.asked)-1] != failing:
			return "others were asked after the error"
		}
		return ""
	})
}

func forTrees(t *testing.T, check func(*rand.Rand, podsource.Source, *tree) string) {
	t.Parallel()
	for seed := *propFirst; seed < *propFirst+orUsual(*propCases, 25_000, 5_000); seed++ {
		rnd := rand.New(rand.NewPCG(seed, 4))
		tr := &tree{rnd: rnd}
		source := tr.random(4, nil)
		if wrong := check(rnd, source, tr); wrong != "" {
			t.Fatalf("case %d: %s", seed, wrong)
		}
	}
}
