// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Union is live where any of the sources says so. Their answers stand side by
// side and are never merged, so that what one says does not weaken what another
// says. An error of any of them is the error of the whole (R2); beside it the
// answer's Parts tell who did answer. It is never [ErrNotHere]: a union exists.
//
// They are asked one after the other, by their [Rank], whatever the order of
// arguments, also through nested Union, [Fallback] and [Require]. After an error
// no more is asked.
func Union(sources ...Source) Source {
	sources = slices.Clone(sources)
	return composite(func() query {
		u := &unionQuery{members: make([]query, len(sources))}
		for i, s := range sources {
			u.members[i] = queryOf(s)
		}
		return u
	})
}

type unionQuery struct {
	members []query
	failed  bool // one of them, and so no more is asked
}

// first returns the member whose turn it is, or nil.
func (u *unionQuery) first() (first query, rank Rank) {
	for _, q := range u.members {
		if r, ok := q.next(); ok && !u.failed && (first == nil || r < rank) {
			first, rank = q, r
		}
	}
	return first, rank
}

func (u *unionQuery) next() (Rank, bool) {
	first, rank := u.first()
	return rank, first != nil
}

func (u *unionQuery) ask(ctx context.Context) {
	first, _ := u.first()
	if first == nil {
		return
	}
	first.ask(ctx)
	if _, more := first.next(); !more {
		_, err := first.answer()
		u.failed = err != nil
	}
}

func (u *unionQuery) answer() (Answer, error) {
	if len(u.members) == 0 {
		return Answer{}, errors.New("union of no pod sources")
	}
	all := Answer{Parts: make([]Answer, 0, len(u.members))}
	var errs []error
	for i, q := range u.members {
		if _, pending := q.next(); pending {
			continue // another one failed
		}
		a, err := q.answer()
		if a.Err == nil {
			a.Err = err
		}
		all.Parts = append(all.Parts, a)
		switch {
		case errors.Is(err, ErrNotHere): // of this member: the others are here
			errs = append(errs, fmt.Errorf("pod source %s: %s", name(a, i, len(u.members)), err.Error()))
		case err != nil:
			errs = append(errs, fmt.Errorf("pod source %s: %w", name(a, i, len(u.members)), err))
		}
	}
	return all, errors.Join(errs...)
}

func name(a Answer, i, n int) string {
	if a.Source != "" {
		return a.Source
	}
	return fmt.Sprintf("%d of %d", i+1, n)
}

// Fallback asks first, and then only where first says that it does not exist on
// this node: [ErrNotHere]. Any other error of first is the answer. A source that
// is merely not ready must not be replaced by one that knows less.
func Fallback(first, then Source) Source {
	return composite(func() query { return &fallbackQuery{query: queryOf(first), then: then} })
}

// A fallbackQuery is the query of first, and from when that is not here the
// query of then.
type fallbackQuery struct {
	query
	then    Source // nil once it is asked
	notHere error  // what first said
}

func (f *fallbackQuery) next() (Rank, bool) {
	rank, ok := f.query.next()
	if ok && f.then != nil { // first is asked as early as then would be
		if early, some := queryOf(f.then).next(); some {
			rank = min(rank, early)
		}
	}
	if ok || f.then == nil {
		return rank, ok
	}
	_, err := f.query.answer()
	then := f.then
	if f.then = nil; !errors.Is(err, ErrNotHere) {
		return 0, false
	}
	f.query, f.notHere = queryOf(then), err
	return f.query.next()
}

func (f *fallbackQuery) answer() (Answer, error) {
	a, err := f.query.answer()
	if err != nil && f.notHere != nil {
		err = fmt.Errorf("%w (asked because: %s)", err, f.notHere.Error())
	}
	return a, err
}

// Require is s, but refuses a list that lacks the given pod, or in which it has
// finished: the agent itself, say, which runs on this node as surely as it asks.
// A wrong node name, a cache that has not synced and the list of another node
// are found this way (R9). The error wraps [ErrIncomplete]. A pod without a
// name, as of an environment variable that is not set, is an error too: sources
// may well list pods without one.
func Require(s Source, pod types.NamespacedName) Source {
	return checked(s, func(a Answer) (Answer, error) {
		if pod.Name == "" {
			return a, fmt.Errorf("the required pod %q has no name; was it left unset?", pod)
		}
		n := 0
		for _, m := range a.Members() {
			n += len(m.Pods)
			if slices.ContainsFunc(m.Pods, func(p Pod) bool { return p.NamespacedName == pod && !p.HasFinished() }) {
				return a, nil
			}
		}
		return a, fmt.Errorf("%w: %d pods, and the required %s does not run among them; is the node's name right?",
			ErrIncomplete, n, pod)
	})
}

// AllowEmpty is s with the caller's assertion that no pods in its answer means
// that there are none (R9): for a node that may really be empty.
func AllowEmpty(s Source) Source {
	return checked(s, func(a Answer) (Answer, error) {
		members := slices.Clone(a.Members())
		for i := range members {
			members[i].Authoritative = true
		}
		if a.Parts == nil {
			return members[0], nil
		}
		a.Parts = members
		return a, nil
	})
}

// checked is a source whose answers go through a function.
func checked(s Source, check func(Answer) (Answer, error)) Source {
	return composite(func() query { return checkedQuery{queryOf(s), check} })
}

type checkedQuery struct {
	query
	check func(Answer) (Answer, error)
}

func (c checkedQuery) answer() (Answer, error) {
	a, err := c.query.answer()
	if err != nil {
		return a, err
	}
	return c.check(a)
}
