// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"time"
)

// A Rank is when a source is asked among others. The life of a container runs in
// the order of the ranks: a container that has not come as far as one source
// when that is asked can't have left the ones before it. So nothing slips
// through between two questions.
type Rank uint8

const (
	RankADDs      Rank = iota + 1 // the processes of CNI plugins
	RankAddresses                 // network namespaces
	RankCache                     // libcni's cache, the record of an agent
	RankRuntime                   // the container runtime
	RankPods                      // kubelet, the API server; and every source that has no rank
)

// Ranked is a Source that knows when it is to be asked.
type Ranked interface {
	Source
	Rank() Rank
}

// A query is one round of questions to a source that may consist of others.
type query interface {
	// next returns the rank of the next question, and false when there is none.
	next() (Rank, bool)
	// ask asks it.
	ask(ctx context.Context)
	// answer is called once there is no next question.
	answer() (Answer, error)
}

// composite is a Source that consists of others. It gives a new query for each
// round of questions.
type composite func() query

// Pods asks all questions, one after the other and by rank.
func (c composite) Pods(ctx context.Context) (Answer, error) {
	for q := c(); ; q.ask(ctx) {
		if _, ok := q.next(); !ok {
			return q.answer()
		}
	}
}

func queryOf(s Source) query {
	if c, ok := s.(composite); ok {
		return c()
	}
	rank := RankPods
	if r, ok := s.(Ranked); ok {
		rank = r.Rank()
	}
	return &question{source: s, rank: rank}
}

// A question is the query of a single source.
type question struct {
	source Source
	rank   Rank
	asked  bool
	got    Answer
	err    error
}

func (q *question) next() (Rank, bool)      { return q.rank, !q.asked }
func (q *question) answer() (Answer, error) { return q.got, q.err }

func (q *question) ask(ctx context.Context) {
	q.asked = true
	begun := time.Now()
	if q.err = ctx.Err(); q.err == nil {
		q.got, q.err = q.source.Pods(ctx)
	}
	q.got.Took, q.got.Err = time.Since(begun), q.err
}
