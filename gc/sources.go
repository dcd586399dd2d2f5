// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// listPods calls the source once, within Options.SourceTimeout. The source is a
// podsource.Union, which returns when its context ends (R13).
func (r *Reconciler) listPods(ctx context.Context) ([]podsource.Answer, error) {
	limit := fmt.Errorf("%w within %v", ErrSourceTimeout, r.opts.SourceTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.SourceTimeout, limit)
	defer cancel()
	answer, err := r.source.Pods(ctx)
	answers := answer.Members()
	for i := range answers { // Union names its own members, but not the parts of their answers
		answers[i].Source = cmp.Or(answers[i].Source, fmt.Sprintf("source %d", i+1))
	}
	return answers, err
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
		if err := cmp.Or(a.Err, checkItems(a)); err != nil {
			return fmt.Errorf("pod source %s: %w", strings.TrimPrefix(a.Source, "source "), err)
		}
		live := func(p podsource.Pod) bool { return !p.HasFinished() || r.clock.finishedFor(at, &p) < holdFinished }
		if !a.Authoritative && !a.Supplementary && !slices.ContainsFunc(a.Pods, live) {
			return fmt.Errorf("%w: %s, with %d entries; it may list another node's pods, or not all of them "+
				"(if this node may really be empty, wrap it in podsource.AllowEmpty)", ErrNoPods, a.Source, len(a.Pods))
		}
		if asOf := r.clock.asOf(at, at, a); inLoop && asOf > always && at.mono-asOf > 2*r.opts.Interval {
			return fmt.Errorf("%s was last known to be true %v ago, which is more than two intervals of %v: is its connection lost?",
				a.Source, (at.mono - asOf).Round(time.Second), r.opts.Interval)
		}
	}
	return nil
}

func checkItems(a *podsource.Answer) error {
	for i := range a.Pods {
		p := &a.Pods[i]
		if slices.Contains(p.IPs, netip.Addr{}) {
			return fmt.Errorf("pod %s: one of its addresses is not valid", refOf(p, ""))
		}
		if i := slices.IndexFunc(p.ContainerIDs, func(id string) bool { return !hostlocal.ValidName(id) }); i >= 0 {
			return fmt.Errorf("pod %s: %q is not a container ID of CNI; list the sandbox's ID, without a scheme", refOf(p, ""), p.ContainerIDs[i])
		}
	}
	if len(a.Networks) == 0 && !a.Supplementary {
		return errors.New("it speaks of no network: its answer must name Networks, or podsource.EveryNetwork")
	}
	return nil
}
