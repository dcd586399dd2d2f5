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

// A composite is a Source that consists of others, which may do so too. Those
// that don't are its leaves.
type composite struct {
	rank Rank // the lowest of its leaves
	// answer is what it says by what its leaves have said in a round, or
	// errNotAsked. Those that it needs yet it names to the round, by their rank,
	// but by atMost where that is lower.
	answer func(r *round, atMost Rank) (Answer, error)
}

var errNotAsked = errors.New("a source was not asked yet")

// A round is one round of questions to the leaves of a composite.
type round struct {
	said map[*leaf]Answer
	next *leaf // of those that are needed yet the one that is to be asked first
	rank Rank  // when it is
}

// A leaf is a single source among others.
type leaf struct{ Source }

func (c composite) Rank() Rank { return c.rank }

// Pods asks one leaf after the other, by rank, until the answer is known.
func (c composite) Pods(ctx context.Context) (Answer, error) {
	r := round{said: make(map[*leaf]Answer)}
	for {
		a, err := c.answer(&r, RankPods)
		if !errors.Is(err, errNotAsked) {
			return a, err
		}
		r.said[r.next] = r.next.ask(ctx)
		r.next = nil
	}
}

// ask asks l. An error stands in the answer.
func (l *leaf) ask(ctx context.Context) (a Answer) {
	begun := time.Now()
	err := ctx.Err()
	if err == nil {
		a, err = l.Pods(ctx)
	}
	a.Took, a.Err = time.Since(begun), err
	return a
}

// errNil is the error of a nil source, as after an error of New that was ignored.
var errNil = fmt.Errorf("it is nil; %w", ErrPermanent)

// compositeOf returns s as a composite, of one leaf where it is none itself.
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
		if a, ok := r.said[l]; ok {
			return a, a.Err
		}
		if rank := min(rank, atMost); r.next == nil || rank < r.rank {
			r.next, r.rank = l, rank
		}
		return Answer{}, errNotAsked
	}}
}
