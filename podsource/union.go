// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Rank orders the sources of a [Union]: they are called in the order in which a new
// container appears in them. So a container that moves on between two calls is still
// seen by the later one. A source says its rank by a method Rank() Rank.
type Rank uint8

const (
	RankADDs      Rank = iota + 1 // the processes of CNI plugins
	RankAddresses                 // network namespaces
	RankCache                     // libcni's cache, the record of an agent
	RankRuntime                   // the container runtime
	RankPods                      // kubelet, the API server; and every source without that method
)

// Union combines sources: a pod is live if any of them says so. Each answer keeps its own
// declarations in Parts; they are never merged. A source without a name is named by its String
// method, or by its position in Parts, from 1. An error of one source is the error of the
// union (R2), beside the Parts of those that did answer. It names the source, and is never
// [ErrNotHere].
//
// The sources are called one after the other in the order of their [Rank], those of a
// nested Union among them. After an error no more sources are called.
//
// Pods of a union returns when its context ends, with the context's cause, even if a source
// does not return (R13). It does not call that source again before it has returned. A panic
// of a source is an error, and so is an answer from after the end of the context.
func Union(sources ...Source) Source {
	if len(sources) == 0 {
		sources = []Source{nil} // an error of each call
	}
	var u union
	for _, s := range sources {
		members, nested := s.(union)
		if !nested {
			members = union{{s, rankOf(s), make(chan struct{}, 1)}}
		}
		u = append(u, members...)
	}
	slices.SortStableFunc(u, func(a, b member) int { return cmp.Compare(a.rank, b.rank) })
	return u
}

// A union is its members, at least one, in the order in which they are called.
type union []member

// A member is a source of a union, which is not a union itself.
type member struct {
	Source
	rank Rank
	busy chan struct{} // has an element during a call, also as a member of another union
}

// Rank returns the lowest rank of the members.
func (u union) Rank() Rank { return u[0].rank }

func (u union) Pods(ctx context.Context) (Answer, error) {
	whole := Answer{Parts: make([]Answer, 0, len(u))}
	for i, m := range u {
		begun := time.Now()
		a, err := m.call(ctx)
		a.Source = cmp.Or(a.Source, nameOf(m.Source))
		name := "source " + cmp.Or(a.Source, strconv.Itoa(i+1))
		a.Took, a.Err, a.Source = time.Since(begun), cmp.Or(err, a.Err), cmp.Or(a.Source, name)
		whole.Parts = append(whole.Parts, a)
		if a.Err == nil {
			continue
		}
		err = fmt.Errorf("pod %s: %w", name, a.Err)
		if errors.Is(err, ErrNotHere) { // of this member only; the others exist
			err = errors.New(err.Error())
		}
		return whole, err
	}
	return whole, nil
}

// call calls the member in a goroutine of its own, and returns when ctx ends.
func (m member) call(ctx context.Context) (Answer, error) {
	if ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}
	select {
	case m.busy <- struct{}{}:
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("an earlier call has not returned: %w", context.Cause(ctx))
	}
	var a Answer // the goroutine's until it sends its error
	answered := make(chan error, 1)
	go func() {
		err := errors.New("it ended its goroutine (runtime.Goexit, or FailNow in a test)")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("it panicked: %v\n%s", p, debug.Stack())
			}
			<-m.busy
			answered <- err
		}()
		a, err = ask(ctx, m.Source)
	}()
	select {
	case err := <-answered:
		if late := context.Cause(ctx); late != nil {
			err = fmt.Errorf("%w: %w", late, cmp.Or(err, errors.New("it answered too late")))
		}
		return a, err
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	}
}

// ask calls a source, unless it is nil: the caller ignored the error of its constructor.
func ask(ctx context.Context, s Source) (Answer, error) {
	if s == nil {
		return Answer{}, fmt.Errorf("there is none, or it is nil; %w", ErrPermanent)
	}
	return s.Pods(ctx)
}

// A wrapper is a source that calls a function, which may call other sources.
type wrapper struct {
	pods func(context.Context) (Answer, error)
	rank Rank
	name string // or nothing
}

func (w wrapper) Pods(ctx context.Context) (Answer, error) { return w.pods(ctx) }

func (w wrapper) Rank() Rank { return w.rank }

func (w wrapper) String() string { return w.name }

func nameOf(s Source) string {
	if named, ok := s.(fmt.Stringer); ok {
		return named.String()
	}
	return ""
}

func rankOf(s Source) Rank {
	if r, ok := s.(interface{ Rank() Rank }); ok {
		return r.Rank()
	}
	return RankPods
}

// Fallback returns the answer of first, or that of then if first does not exist on this
// node ([ErrNotHere]). Any other error of first is returned: a source that is not ready
// must not be replaced by one that knows less. In a [Union] they count as one source, with
// the lower of their ranks.
func Fallback(first, then Source) Source {
	names := slices.DeleteFunc([]string{nameOf(first), nameOf(then)}, func(name string) bool { return name == "" })
	return wrapper{func(ctx context.Context) (Answer, error) {
		a, notHere := ask(ctx, first)
		if !errors.Is(notHere, ErrNotHere) {
			return a, notHere
		}
		a, err := ask(ctx, then)
		if err != nil {
			err = fmt.Errorf("%w (asked because: %s)", err, notHere.Error())
		}
		return a, err
	}, min(rankOf(first), rankOf(then)), strings.Join(names, " or ")}
}

// Require returns s with a check that the given pod is in its list and has not finished.
// The agent's own pod is such a pod: it certainly runs on this node. The check detects a
// wrong node name, a cache that has not synced, and the list of another node (R9). The
// error wraps [ErrIncomplete]. A pod without a name, as from an environment variable that
// is not set, is an error too, since sources may list pods without names. S must not be a
// [Union]: wrap the member that lists the pod.
func Require(s Source, pod types.NamespacedName) Source {
	return checked(s, func(a *Answer) error {
		if pod.Name == "" {
			return fmt.Errorf("the required pod %q has no name; was it left unset? %w", pod, ErrPermanent)
		}
		if slices.ContainsFunc(a.Pods, func(p Pod) bool { return p.NamespacedName == pod && !p.HasFinished() }) {
			return nil
		}
		return fmt.Errorf("%w: %d pods, and the required %s does not run among them; is the node's name right?",
			ErrIncomplete, len(a.Pods), pod)
	})
}

// AllowEmpty returns s with the caller's assertion that an answer without pods means that
// there are none (R9). It is for a node that may really be empty. Directly around
// [Attachments] it also ends the gap of an empty list. S must not be a [Union]:
// wrap each member that may be empty.
func AllowEmpty(s Source) Source {
	_, own := s.(attachments)
	return checked(s, func(a *Answer) error {
		a.Authoritative = true
		if own {
			a.Gaps, a.Note = slices.DeleteFunc(a.Gaps, func(g Gap) bool { return g.To.IsZero() }), ""
		}
		return nil
	})
}

// checked returns s with a function that checks or changes its answers.
func checked(s Source, check func(*Answer) error) Source {
	return wrapper{func(ctx context.Context) (Answer, error) {
		a, err := ask(ctx, s)
		switch {
		case err != nil:
		case slices.ContainsFunc(a.Parts, func(p Answer) bool { return !p.Supplementary }): // also of a union in a Fallback (hazard 85)
			a, err = Answer{}, fmt.Errorf("Require and AllowEmpty go around the member of a union that they are for, "+
				"not around the union: %w", ErrPermanent)
		default:
			err = check(&a)
		}
		return a, err
	}, rankOf(s), nameOf(s)}
}
