// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// listPods asks the source once. It returns within the time limit, even if the source
// does not, and turns a panic or an end of the source's goroutine into an error (R2,
// R13). A source that ignores the end of its context is not asked again before it
// returns: at most one call is under way.
func (r *Reconciler) listPods(ctx context.Context) ([]podsource.Answer, error) {
	limit := fmt.Errorf("%w within %v", ErrSourceTimeout, r.opts.SourceTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.SourceTimeout, limit)
	defer cancel()
	select {
	case r.sourceBusy <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("asking the pod source, which is still busy with an earlier call: %w", context.Cause(ctx))
	}
	var answer podsource.Answer // the goroutine's until it sends its error
	answered := make(chan error, 1)
	go func() {
		defer func() { <-r.sourceBusy }()
		err := errors.New("pod source ended its goroutine (runtime.Goexit, or FailNow in a test)")
		defer func() { answered <- err }()
		err = recoverPanic("pod source", func() (err error) {
			answer, err = r.callSource(ctx)
			return err
		})
	}()
	select {
	case err := <-answered:
		answer.Err = cmp.Or(err, answer.Err)
		return answer.Members(), err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// callSource calls the source. An answer from after the end of ctx may be incomplete,
// and is an error.
func (r *Reconciler) callSource(ctx context.Context) (podsource.Answer, error) {
	begun := time.Now()
	answer, err := r.source.Pods(ctx)
	answer.Took = cmp.Or(answer.Took, time.Since(begun))
	cause := context.Cause(ctx)
	if cause != nil && err != nil {
		return answer, fmt.Errorf("%w: %w", cause, err)
	}
	return answer, cmp.Or(err, cause)
}

// check refuses answers that don't count. Each must be without an error, and all of its
// items must be valid: otherwise the rest can't be trusted either (R2). It must have a
// pod that did not finish long ago, unless it is supplementary or declares that empty is
// an answer (R9). In a loop it must not be older than two intervals by the current wall
// clock. If a step of the clock hides its age, it is not refused, but supports no
// release (R5).
func (r *Reconciler) check(answers []podsource.Answer, at reading, inLoop bool) error {
	if len(answers) == 0 {
		return errors.New("the answer of the pod source has no parts")
	}
	for i := range answers {
		a := &answers[i]
		name := sourceName(a, i)
		if err := cmp.Or(a.Err, checkItems(a)); err != nil {
			return fmt.Errorf("pod source %s: %w", name, err)
		}
		live := func(p podsource.Pod) bool { return !p.HasFinished() || r.clock.finishedFor(at, &p) < holdFinished }
		if !a.Authoritative && !a.Supplementary && !slices.ContainsFunc(a.Pods, live) {
			return fmt.Errorf("%w: %s, with %d entries; it may list another node's pods, or not all of them "+
				"(if this node may really be empty, wrap it in podsource.AllowEmpty)", ErrNoPods, name, len(a.Pods))
		}
		if old := at.wall.Sub(a.AsOf); inLoop && !a.AsOf.IsZero() && old > 2*r.opts.Interval {
			return fmt.Errorf("%s was last known to be true %v ago, which is more than two intervals of %v: is its connection lost?",
				name, old.Round(time.Second), r.opts.Interval)
		}
	}
	return nil
}

func checkItems(a *podsource.Answer) error {
	for i := range a.Pods {
		p := &a.Pods[i]
		for _, ip := range p.IPs {
			if !ip.IsValid() {
				return fmt.Errorf("pod %s: one of its addresses is not valid", refOf(p, ""))
			}
		}
		for _, id := range p.ContainerIDs {
			if id == "" || strings.ContainsAny(id, "/: \t\r\n") {
				return fmt.Errorf("pod %s: %q is not a container ID of CNI; "+
					"list the sandbox's ID, without a scheme", refOf(p, ""), id)
			}
		}
	}
	for _, n := range a.Names {
		if n.Lag < 0 && n.Lag != podsource.RuntimeLag {
			return fmt.Errorf("it declares a lag of %v for the containers that it names; a lag must not be negative", n.Lag)
		}
	}
	return nil
}

// sourceName returns the name of a source, or its position.
func sourceName(a *podsource.Answer, i int) string {
	return cmp.Or(a.Source, fmt.Sprintf("source %d", i+1))
}
