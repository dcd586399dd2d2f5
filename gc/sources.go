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

// listPods asks the source once. It returns when the question's time is up, also
// when the source does not, and makes an error of a panic and of a goroutine
// that ends (R2, R13). A source that went on after its context is not asked
// again before it came back, so that no more than one call of it is ever under
// way.
func (r *Reconciler) listPods(ctx context.Context) ([]podsource.Answer, error) {
	limit := fmt.Errorf("%w: it has been asked for %v", ErrSourceTimeout, r.opts.SourceTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.SourceTimeout, limit)
	defer cancel()
	select {
	case r.sourceBusy <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("asking the pod source, which is still busy with an earlier question: %w", context.Cause(ctx))
	}
	var answer podsource.Answer // the goroutine's, until it has sent its error
	answered := make(chan error, 1)
	go func() {
		defer func() { <-r.sourceBusy }()
		err := errors.New("pod source ended its goroutine (runtime.Goexit, or FailNow in a test)")
		defer func() { answered <- err }()
		err = recoverPanic("pod source", func() (err error) {
			answer, err = r.question(ctx)
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

// question asks the source. An answer that comes after the end of ctx may be cut short.
func (r *Reconciler) question(ctx context.Context) (podsource.Answer, error) {
	begun := time.Now()
	answer, err := r.source.Pods(ctx)
	answer.Took = cmp.Or(answer.Took, time.Since(begun))
	cause := context.Cause(ctx)
	if cause != nil && err != nil {
		return answer, fmt.Errorf("%w: %w", cause, err)
	}
	return answer, cmp.Or(err, cause)
}

// check refuses answers that don't count. Each must be without an error, and be
// what it says in all of its items: else the rest can't be trusted either (R2).
// It must have a pod that did not finish long ago, unless its silence lets nothing
// go or it declares that empty is an answer (R9). In a loop it must not be older
// than two intervals by the clock as it is; where a step of that hides how old it
// is, it is not refused, but supports no release (R5).
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
			return fmt.Errorf("%w: %s, with %d entries; its view may be of another node, or not complete "+
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
				return fmt.Errorf("pod %s: one of its addresses is not an address", refOf(p, ""))
			}
		}
		for _, id := range p.ContainerIDs {
			if id == "" || strings.ContainsAny(id, "/: \t\r\n") {
				return fmt.Errorf("pod %s: %q is not a container ID as CNI knows it; "+
					"wanted is the sandbox's ID, without a scheme", refOf(p, ""), id)
			}
		}
	}
	for _, n := range a.Names {
		if n.Lag < 0 && n.Lag != podsource.RuntimeLag {
			return fmt.Errorf("it declares that it names containers %v after their reservation", n.Lag)
		}
	}
	return nil
}

// sourceName is what a source calls itself, or its place.
func sourceName(a *podsource.Answer, i int) string {
	return cmp.Or(a.Source, fmt.Sprintf("source %d", i+1))
}
