// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Union combines sources: a pod is live if any of them says so. Each answer keeps its own
// declarations in Parts; they are never merged. An error of one source is the error of the
// union (R2), beside the Parts of those that did answer. It is never [ErrNotHere].
//
// The sources are called one after the other in the order of their [Rank], also inside a
// nested Union, [Fallback] or [Require]. After an error no more sources are called.
func Union(sources ...Source) Source {
	all := composite{rank: RankPods}
	members := make([]composite, len(sources))
	for i, s := range sources {
		members[i] = compositeOf(s)
		all.rank = min(all.rank, members[i].rank)
	}
	all.answer = func(r *round, atMost Rank) (Answer, error) {
		if len(members) == 0 {
			return Answer{}, errors.New("union of no pod sources")
		}
		whole, pending := Answer{Parts: make([]Answer, 0, len(members))}, false
		var failed error
		for i, m := range members {
			a, err := m.answer(r, atMost)
			if errors.Is(err, errNotAsked) {
				pending = true
				continue
			}
			if err != nil {
				a.Err = cmp.Or(a.Err, err)
				name := cmp.Or(a.Source, fmt.Sprintf("%d of %d", i+1, len(members)))
				failed = fmt.Errorf("pod source %s: %w", name, err)
				if errors.Is(err, ErrNotHere) { // of this member only; the others exist
					failed = errors.New(failed.Error())
				}
			}
			whole.Parts = append(whole.Parts, a)
		}
		if pending && failed == nil {
			return Answer{}, errNotAsked
		}
		return whole, failed
	}
	return all
}

// Fallback returns the answer of first, or that of then if first does not exist on this
// node ([ErrNotHere]). Any other error of first is returned: a source that is not ready
// must not be replaced by one that knows less.
func Fallback(first, then Source) Source {
	f, t := compositeOf(first), compositeOf(then)
	return composite{min(f.rank, t.rank), func(r *round, atMost Rank) (Answer, error) {
		a, notHere := f.answer(r, min(atMost, t.rank)) // called no later than its replacement
		if !errors.Is(notHere, ErrNotHere) {
			return a, notHere
		}
		a, err := t.answer(r, atMost)
		if err != nil {
			err = fmt.Errorf("%w (asked because: %s)", err, notHere.Error())
		}
		return a, err
	}}
}

// Require returns s with a check that the given pod is in its list and has not finished.
// The agent's own pod is such a pod: it certainly runs on this node. The check detects a
// wrong node name, a cache that has not synced, and the list of another node (R9). The
// error wraps [ErrIncomplete]. A pod without a name, as from an environment variable that
// is not set, is an error too, since sources may list pods without names.
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

// AllowEmpty returns s with the caller's assertion that an answer without pods means that
// there are none (R9). It is for a node that may really be empty.
func AllowEmpty(s Source) Source {
	return checked(s, func(a Answer) (Answer, error) {
		if a.Parts == nil {
			a.Authoritative = true
			return a, nil
		}
		a.Parts = a.Members()
		for i := range a.Parts {
			a.Parts[i].Authoritative = true
		}
		return a, nil
	})
}

// checked returns s with a function that checks or changes its answers.
func checked(s Source, check func(Answer) (Answer, error)) Source {
	c := compositeOf(s)
	return composite{c.rank, func(r *round, atMost Rank) (Answer, error) {
		a, err := c.answer(r, atMost)
		if err != nil {
			return a, err
		}
		return check(a)
	}}
}
