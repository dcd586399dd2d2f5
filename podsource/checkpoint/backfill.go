// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Backfill adds the attachments that were made while the record was not kept: those
// that attachmentsOf returns for the pods of source. If there is no file, it writes the
// first one. Call it at every start, before the agent serves, and again while the agent
// serves, after twice the Lag, until it returns [fs.ErrExist]: then no gap is left that
// a source could close, and the source was not asked.
//
// Attachments that the source can't list yet are not recorded, and the record does not
// speak of their reservations: those made from Options.Lag before the source was asked
// until Options.Lag after the record was opened, by an ADD in flight (hazard 52), and
// those made since the start of a pod whose containers and addresses are unknown (R4).
//
// attachmentsOf is called for each pod, also if several entries of a [podsource.Union]
// are the same pod. It is not called for pods in the node's network, nor for pods that
// have been finished for five minutes, which have no attachment any more (hazard 61).
// Entries that are already recorded do not change, and entries that are removed
// meanwhile are not added.
//
// If the source, or a member of it that is not supplementary, lists no pods except
// those that have been finished for five minutes, it must declare that it is
// authoritative (R9); podsource.AllowEmpty lets the caller assert that. For each of
// Options.Networks there must be a member that speaks of it and is not supplementary. A
// gap of such a member stays a gap of the record, unless another such member of the
// network has no gaps; no gap is added. If no member names any container, the record keeps
// its gap for containers that are no sandboxes (hazard 49).
//
// After an error nothing has changed. The agent may go on and try again: without a file
// Add returns errors, and in its gaps the record speaks of no network.
func (c *Checkpoint) Backfill(ctx context.Context, source podsource.Source,
	attachmentsOf func(podsource.Pod) ([]Entry, error)) error {
	doing := "adding to the record " + c.path
	if !c.backfilling.TryLock() {
		return fmt.Errorf("%s: another Backfill is running", doing)
	}
	defer c.backfilling.Unlock()
	if s := c.state.Load(); s != nil && !slices.ContainsFunc(s.gaps, func(g podsource.Gap) bool { return g.But == 0 }) {
		return fmt.Errorf("%s: %w", doing, fs.ErrExist)
	}
	c.watchRemoved(true)
	defer c.watchRemoved(false)
	f := backfill{attachmentsOf: attachmentsOf, networks: c.networks, asked: time.Now(), lag: c.lag}
	if s := c.state.Load(); s != nil {
		f.steps = s.stepsAt(f.asked)
		f.slack = f.steps.within(c.lag, f.asked)
	}
	if err := f.ask(ctx, source); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return c.change(doing, func(s *state) (*state, error) {
		if _, err := os.Lstat(c.path); !s.written && err == nil && !c.dirty {
			return nil, fs.ErrExist
		}
		now := time.Now()
		gaps := s.gapsAt(now)
		next := s.with(slices.Clone(s.items))
		next.gaps = joined(append(narrowed(gaps, f.kind, f.before, now.Round(0).Add(c.lag)), common(gaps, f.gaps)...))
		next.at, next.steps = readingOf(now), f.steps
		for _, added := range f.items {
			if i, found := find(next.items, added.Key); !found && !c.removed[added.Key] {
				next.items = slices.Insert(next.items, i, added)
			}
		}
		return next, nil
	})
}

// watchRemoved begins or ends the recording of removed keys.
func (c *Checkpoint) watchRemoved(begin bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed = nil; begin {
		c.removed = make(map[Key]bool)
	}
}

// A backfill is the state of one Backfill.
type backfill struct {
	attachmentsOf func(podsource.Pod) ([]Entry, error)
	networks      []string // of the record
	asked         time.Time
	lag           time.Duration // Options.Lag
	steps         clockSteps
	slack         time.Duration // how far the clock was set within the lag
	items         []*item       // sorted by key

	// The source lists all containers of this kind whose address was
	// reserved before this time, outside of these gaps.
	kind   podsource.Kind
	before time.Time
	gaps   []podsource.Gap
}

// ask calls the source and collects its attachments.
func (f *backfill) ask(ctx context.Context, source podsource.Source) error {
	all, err := source.Pods(ctx)
	if err != nil {
		return err
	}
	f.before = f.asked.Add(-f.lag - f.slack).Round(0) // without monotonic clock, like AsOf
	if err := f.checkMembers(all.Members()); err != nil {
		return err
	}
	for _, a := range all.Members() {
		a.Pods = slices.DeleteFunc(slices.Clone(a.Pods), finishedLongAgo)
		if len(a.Pods) == 0 && !a.Authoritative && !a.Supplementary {
			return fmt.Errorf("source %q lists no pods: if the node may be empty, wrap it in podsource.AllowEmpty; until a Backfill succeeds, a new record takes no Add", a.Source)
		}
		if !a.AsOf.IsZero() {
			f.notListedSince(a.AsOf)
			f.notListedSince(a.AsOf.Add(-f.lag - f.slack))
		}
		for _, p := range a.Pods {
			if err := f.add(p); err != nil {
				return fmt.Errorf("pod %s (UID %q): %w", p.NamespacedName, p.UID, err)
			}
		}
	}
	return nil
}

// checkMembers collects the gaps of an answer's members, and the kind of containers
// that they list. It returns an error if they do not speak of all networks of the
// record, which will declare that no other container is live there. Supplementary
// members don't count, since they may lack any pod.
func (f *backfill) checkMembers(members []podsource.Answer) error {
	f.kind = podsource.AnyContainer
	for _, network := range f.networks {
		of := slices.DeleteFunc(slices.Clone(members), func(a podsource.Answer) bool {
			return a.Supplementary || !podsource.Covers(a.Networks, network)
		})
		if len(of) == 0 {
			return fmt.Errorf("no source lists all pods of network %q; ask a runtime, kubelet or the API server, too", network)
		}
		hasNoGaps := func(a podsource.Answer) bool { return len(a.Gaps) == 0 }
		if slices.ContainsFunc(of, hasNoGaps) {
			of = slices.DeleteFunc(of, func(a podsource.Answer) bool { return !hasNoGaps(a) })
		}
		for _, a := range of {
			f.gaps = append(f.gaps, a.Gaps...)
		}
		if !slices.ContainsFunc(of, func(a podsource.Answer) bool { return a.Names == podsource.AnyContainer }) {
			f.kind = podsource.SandboxContainers // Kubernetes pods and sandboxes alone
		}
	}
	return nil
}

// notListedSince notes that containers whose address was reserved since a time may not
// be listed. If the time is unknown or in the future, it is all time (hazard 36).
func (f *backfill) notListedSince(t time.Time) {
	switch {
	case t.After(f.asked):
		f.before = time.Time{}
	case t.Before(f.before):
		f.before = t
	}
}

// finishedLongAgo reports whether a pod has been finished long enough to have no
// attachment. A pod with an unknown time may just have finished.
func finishedLongAgo(p podsource.Pod) bool {
	return !p.FinishedAt.IsZero() && time.Since(p.FinishedAt) >= 5*time.Minute
}

// add adds the attachments of a pod. An attachment may come twice, from two members.
func (f *backfill) add(p podsource.Pod) error {
	if p.HostNetwork {
		return nil
	}
	if f.attachmentsOf == nil {
		return errors.New("its attachments are unknown: attachmentsOf is nil")
	}
	entries, err := f.attachmentsOf(p)
	if err != nil {
		return err
	}
	starting := len(p.ContainerIDs) == 0 && (len(p.IPs) == 0 || p.MoreIPs) && !p.HasFinished()
	if starting && len(entries) == 0 {
		f.notListedSince(p.StartedAt)
	}
	for _, e := range entries {
		added, err := normalize(e)
		if err != nil {
			return err
		}
		if i, found := find(f.items, e.Key); !found {
			f.items = slices.Insert(f.items, i, added)
		}
	}
	return nil
}
