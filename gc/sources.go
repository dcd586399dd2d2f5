// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
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
		if answer.Took == 0 {
			answer.Took = time.Since(begun)
		}
		answer.Err = cmp.Or(err, answer.Err)
		res = result{answer, err}
	}()
	select {
	case res := <-got:
		answers := res.answer.Members()
		if len(answers) == 0 && res.err == nil {
			res.err = errors.New("the answer has no parts")
		}
		for i := range answers {
			if res.err == nil {
				res.err = answers[i].Err
			}
			if res.err == nil {
				res.err = checkAnswer(&answers[i])
			}
		}
		if cause := context.Cause(ctx); res.err != nil && errors.Is(cause, ErrSourceTimeout) {
			res.err = fmt.Errorf("%w: %w", cause, res.err)
		}
		if res.err != nil {
			return answers, fmt.Errorf("asking the pod source: %w", res.err)
		}
		return answers, nil
	case <-done:
		return nil, fmt.Errorf("asking the pod source: %w", context.Cause(ctx))
	}
}

// clone copies answers, so that a source that uses its memory again does not
// change what it said before.
func clone(answers []podsource.Answer) []podsource.Answer {
	answers = slices.Clone(answers)
	for i := range answers {
		a := &answers[i]
		a.Pods, a.Names, a.Recorded = slices.Clone(a.Pods), slices.Clone(a.Names), slices.Clone(a.Recorded)
		a.Networks, a.Forms = slices.Clone(a.Networks), slices.Clone(a.Forms)
		for j := range a.Names {
			a.Names[j].Networks = slices.Clone(a.Names[j].Networks)
		}
		for j := range a.Pods {
			p := &a.Pods[j]
			p.ContainerIDs, p.IPs = slices.Clone(p.ContainerIDs), slices.Clone(p.IPs)
		}
	}
	return answers
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

// checkAge refuses an answer of a loop that is older than two intervals, by the
// clock as it is. One whose date can't be placed after a step is not refused, but
// supports no release.
func (r *Reconciler) checkAge(answers []podsource.Answer, at reading) error {
	for i := range answers {
		a := &answers[i]
		if old := at.wall.Sub(a.AsOf); !a.AsOf.IsZero() && old > 2*r.opts.Interval {
			return fmt.Errorf("%s was last known to be true %v ago, which is more than two intervals of %v: is its connection lost?",
				sourceName(a, i), old.Round(time.Second), r.opts.Interval)
		}
	}
	return nil
}
