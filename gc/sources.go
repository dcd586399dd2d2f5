// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
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
	done := ctx.Done()
	select {
	case r.sourceBusy <- struct{}{}:
	case <-done:
		return nil, fmt.Errorf("asking the pod source, which is still busy with an earlier question: %w", context.Cause(ctx))
	}
	type result struct {
		answer podsource.Answer
		err    error
	}
	got := make(chan result, 1)
	go func() {
		defer func() { <-r.sourceBusy }()
		res := result{err: errors.New("pod source ended its goroutine (runtime.Goexit, or FailNow in a test)")}
		defer func() {
			if p := recover(); p != nil {
				res.err = fmt.Errorf("pod source panicked: %v\n%s", p, debug.Stack())
			}
			got <- res
		}()
		begun := time.Now()
		answer, err := r.source.Pods(ctx)
		if answer.Parts == nil {
			answer.Took, answer.Err = time.Since(begun), err
		}
		res = result{answer, err}
	}()
	select {
	case res := <-got:
		answers := res.answer.Members()
		for i := range answers {
			if res.err == nil {
				res.err = checkAnswer(&answers[i])
			}
		}
		if res.err != nil {
			return answers, fmt.Errorf("asking the pod source: %w", res.err)
		}
		return answers, nil
	case <-done:
		return nil, fmt.Errorf("asking the pod source: %w", context.Cause(ctx))
	}
}

// checkAnswer refuses an answer of which one item can't be what it says: then
// the rest can't be trusted either (R2).
func checkAnswer(a *podsource.Answer) error {
	for i := range a.Pods {
		p := &a.Pods[i]
		for _, ip := range p.IPs {
			if !ip.IsValid() {
				return fmt.Errorf("pod %s: one of its addresses is not an address", podName(p, a.Source))
			}
		}
		for _, id := range p.ContainerIDs {
			if id == "" || strings.ContainsAny(id, "/: \t\r\n") {
				return fmt.Errorf("pod %s: %q is not a container ID as CNI knows it; "+
					"wanted is the sandbox's ID, without a scheme", podName(p, a.Source), id)
			}
		}
	}
	for _, n := range a.Names {
		if n.Lag < 0 && n.Lag != podsource.RuntimeLag {
			return fmt.Errorf("source %s declares that it names containers %v after their reservation", a.Source, n.Lag)
		}
	}
	return nil
}

func podName(p *podsource.Pod, source string) string {
	ref := refOf(p, source)
	return ref.String()
}

// checkView refuses an answer without any pod, of each source whose silence lets
// go, unless it is declared to be one (R9). Pods that finished long ago don't
// count.
func (r *Reconciler) checkView(answers []podsource.Answer, at reading) error {
	for i := range answers {
		a := &answers[i]
		live := a.Authoritative || a.Supplementary
		for j := 0; j < len(a.Pods) && !live; j++ {
			live = !a.Pods[j].HasFinished() || r.clock.finishedFor(at, &a.Pods[j]) < holdFinished
		}
		if !live {
			return fmt.Errorf("%w: %s, with %d entries; its view may be of another node, or not complete "+
				"(if this node may really be empty, wrap it in podsource.AllowEmpty)", ErrNoPods, sourceName(a, i), len(a.Pods))
		}
	}
	return nil
}

func sourceName(a *podsource.Answer, i int) string {
	if a.Source != "" {
		return a.Source
	}
	return fmt.Sprintf("source %d", i+1)
}

// staleness returns by how much the stalest answer is older than the reading at
// (R5): forever where that can't be told. In a loop one older than two intervals
// is an error.
func (r *Reconciler) staleness(answers []podsource.Answer, at, now reading, inLoop bool) (time.Duration, error) {
	stale := time.Duration(0)
	for i := range answers {
		asOf := answers[i].AsOf
		if asOf.IsZero() {
			continue
		}
		if asOf.After(now.wall.Add(clockTolerance)) || asOf.Before(r.clock.trustedSince) {
			stale = forever
		}
		if old := at.wall.Sub(asOf); inLoop && old > 2*r.opts.Interval {
			return 0, fmt.Errorf("%s was last known to be true %v ago, which is more than two intervals of %v: is its connection lost?",
				sourceName(&answers[i], i), old.Round(time.Second), r.opts.Interval)
		}
		stale = max(stale, at.wall.Sub(asOf))
	}
	return stale, nil
}
