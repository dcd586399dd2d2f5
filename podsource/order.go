// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Rank orders the sources of a [Union]: they are called in the order in which a new
// container appears in them. So a container that moves on between two calls is still
// seen by the later one.
type Rank uint8

const (
	RankADDs      Rank = iota + 1 // the processes of CNI plugins
	RankAddresses                 // network namespaces
	RankCache                     // libcni's cache, the record of an agent
	RankRuntime                   // the container runtime
	RankPods                      // kubelet, the API server; and every source that has no rank
)

// Ranked is a Source with a Rank. Other sources have the rank RankPods.
type Ranked interface {
	Source
	Rank() Rank
}

// A composite is a Source that consists of other sources, which may be composites
// themselves. Its leaves are the sources that are none.
type composite struct {
	rank Rank // the lowest of its leaves
	// answer combines the answers that the leaves have given in a round. If one is
	// missing, it returns errNotAsked, and sets round.next to the leaf with the lowest
	// rank. A rank above atMost counts as atMost.
	answer func(r *round, atMost Rank) (Answer, error)
}

var errNotAsked = errors.New("a source was not asked yet")

// A round is one call of a composite, in which each leaf is called at most once.
type round struct {
	answers map[*leaf]Answer
	next    *leaf // the leaf to call next
	rank    Rank  // its rank, at most atMost
}

// A leaf is a source that is not a composite. Its address identifies it in a round.
type leaf struct{ Source }

func (c composite) Rank() Rank { return c.rank }

// Pods calls one leaf after the other, by rank, until the answer is known.
func (c composite) Pods(ctx context.Context) (Answer, error) {
	r := round{answers: make(map[*leaf]Answer)}
	for {
		a, err := c.answer(&r, RankPods)
		if !errors.Is(err, errNotAsked) {
			return a, err
		}
		r.answers[r.next] = r.next.call(ctx)
		r.next = nil
	}
}

// call calls l, and returns its error in the answer.
func (l *leaf) call(ctx context.Context) (a Answer) {
	begun := time.Now()
	err := ctx.Err()
	if err == nil {
		a, err = l.Pods(ctx)
	}
	a.Took, a.Err = time.Since(begun), err
	return a
}

// errNil is the error of a nil source: the caller ignored the error of a constructor.
var errNil = fmt.Errorf("it is nil; %w", ErrPermanent)

// compositeOf returns s, or a composite with s as its only leaf.
func compositeOf(s Source) composite {
	if c, ok := s.(composite); ok {
		return c
	}
	if s == nil {
		return composite{RankPods, func(*round, Rank) (Answer, error) { return Answer{}, errNil }}
	}
	l, rank := &leaf{s}, RankPods
	if r, ok := s.(Ranked); ok {
		rank = r.Rank()
	}
	return composite{rank, func(r *round, atMost Rank) (Answer, error) {
		if a, ok := r.answers[l]; ok {
			return a, a.Err
		}
		if rank := min(rank, atMost); r.next == nil || rank < r.rank {
			r.next, r.rank = l, rank
		}
		return Answer{}, errNotAsked
	}}
}
