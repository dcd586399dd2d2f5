// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Backfill adds the attachments that were made while the record was not kept: those
// that attachmentsOf returns for the pods of source. If there is no file, it writes the
// first one. Call it at every start, before the agent serves, and again while the agent
// serves, after twice the Lag (14 minutes), until it returns [fs.ErrExist]: then no gap is left
// that such a source could close, and the source was not asked.
//
// Attachments that the source can't list yet are not recorded, and the record does not
// speak of their reservations: those made from Options.Lag before the source was asked
// until Options.Lag after the record was opened, by an ADD in flight (hazard 52), and
// those made since the start of a pod whose containers and addresses are unknown (R4).
//
// attachmentsOf is called for each pod, also if several entries of a [podsource.Union]
// are the same pod, and may be nil if there is none. It is not called for pods in the node's
// network, nor for pods that have been finished for five minutes, which have no attachment any
// more (hazard 61). Entries that are already recorded do not change, except those whose namespace
// is not at its path: their container may have been attached again. Entries without a path, as
// other Backfills add them, are removed once the source must list their containers and does not.
// Entries that are removed meanwhile are not added.
//
// If the source, or a member of it that is not supplementary, lists no pods except
// those that have been finished for five minutes, it must declare that it is
// authoritative (R9); podsource.AllowEmpty lets the caller assert that. For each of
// Options.Networks there must be a member that speaks of it and is not supplementary. The
// record keeps its gap from where a member's gap begins. If in some network no member names
// any container, the record keeps its gap for containers that are no sandboxes (hazard 49).
// Soon after a step of the clock was seen, a call closes no gap, since timestamps don't show
// what the source can list; nor does a list with a date from before it (hazard 52).
//
// After an error nothing has changed. The agent may go on and try again. One call may run at a time.
// Where there is no source, or it does not answer at the first start, a nil source lets the agent
// begin: the file is written, no gap is closed, and what was reserved before is kept until a DEL,
// a boot, or a later call with a source that answers.
func (c *Checkpoint) Backfill(ctx context.Context, source podsource.Source, attachmentsOf func(podsource.Pod) ([]Entry, error)) error {
	doing := "adding to the record " + c.path
	c.watch(make(map[Key]bool))
	defer c.watch(nil)
	if s := c.state.Load(); !s.gap.has(s.gap.From) {
		return fmt.Errorf("%s: %w", doing, fs.ErrExist)
	}
	f := backfill{attachmentsOf: attachmentsOf, lag: c.opts.Lag, asked: time.Now(), listed: make(map[string]bool)}
	if err := f.ask(ctx, source, c.opts.Networks); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return c.change(doing, func(s *state) (bool, error) {
		changed := source != nil || !s.written // else a full disk would be an error for nothing
		if !s.written {
			s.written, s.gap.To = true, s.wall.Add(c.opts.Lag)
		}
		if s.stepped.IsZero() || !f.dated && s.stepped.Before(f.before) { // else timestamps don't show what is older (hazard 52)
			s.gap.From = latest(s.gap.From, f.before.Round(0))
			if f.kind == podsource.AnyContainer {
				s.gap.Others = latest(s.gap.Others, f.before.Round(0))
			}
			maps.DeleteFunc(s.entries, func(k Key, e Entry) bool { // else its container would be listed
				return e.NetNS.Path == "" && !f.listed[k.ContainerID] && f.kind.Has(k.ContainerID) && e.Time.Before(f.before)
			})
		}
		for _, e := range f.entries {
			old, found := s.entries[e.Key]
			gone := old.NetNS.Inode != 0 && !old.NetNS.Present() // its container may be attached again in another one
			if (!found || gone) && !c.removed[e.Key] {
				s.entries[e.Key] = e
			}
		}
		return changed, nil
	})
}

// A backfill is what one Backfill learns of its source.
type backfill struct {
	attachmentsOf func(podsource.Pod) ([]Entry, error)
	lag           time.Duration // Options.Lag
	asked         time.Time
	entries       []Entry
	listed        map[string]bool // the containers of the source's pods, and of entries

	// The source lists all containers of this kind whose address was
	// reserved before this time.
	kind   podsource.Kind
	before time.Time
	dated  bool // some answer has an AsOf that steps of the clock make wrong
}

// ask calls the source, and collects its attachments, and what it leaves out: gaps, and kinds of
// containers. Supplementary answers speak of no network here, since they may lack any pod.
func (f *backfill) ask(ctx context.Context, source podsource.Source, networks []string) error {
	if source == nil {
		return nil // nothing is listed since ever
	}
	all, err := source.Pods(ctx)
	if err != nil {
		return err
	}
	f.before, f.kind = f.asked.Add(-f.lag), podsource.AnyContainer
	for _, network := range networks {
		speaks, namesAny := false, false
		for _, a := range all.Members() {
			if !a.Supplementary && podsource.Covers(a.Networks, network) {
				speaks, namesAny = true, namesAny || a.Names == podsource.AnyContainer
			}
		}
		if !speaks {
			return fmt.Errorf("no source lists all pods of network %q; ask a runtime, kubelet or the API server, too", network)
		}
		if !namesAny {
			f.kind = podsource.SandboxContainers // Kubernetes pods and sandboxes alone
		}
	}
	for _, a := range all.Members() {
		pods := slices.DeleteFunc(slices.Clone(a.Pods), finishedLongAgo)
		if len(pods) == 0 && !a.Authoritative && !a.Supplementary {
			return fmt.Errorf("source %q lists no pods: if the node may be empty, wrap it in podsource.AllowEmpty", a.Source)
		}
		for _, g := range a.Gaps {
			f.notListedSince(g.From)
		}
		if !a.AsOf.IsZero() {
			f.dated = f.dated || a.AsOf == a.AsOf.Round(0) //nolint:staticcheck // without a reading of the monotonic clock, which Equal ignores
			f.notListedSince(a.AsOf)                       // it may be in the future
			f.notListedSince(a.AsOf.Add(-f.lag))
		}
		for _, p := range pods {
			if err := f.add(p); err != nil {
				return fmt.Errorf("pod %s (UID %q): %w", p.NamespacedName, p.UID, err)
			}
		}
	}
	return nil
}

// notListedSince notes that containers whose address was reserved since a time may not
// be listed. If the time is unknown or in the future, it is all time (hazard 36).
func (f *backfill) notListedSince(t time.Time) {
	if t.After(f.asked) {
		t = time.Time{}
	}
	f.before = slices.MinFunc([]time.Time{f.before, t}, time.Time.Compare)
}

// finishedLongAgo reports whether a pod has been finished long enough to have no
// attachment. A pod with an unknown time may just have finished.
func finishedLongAgo(p podsource.Pod) bool {
	return !p.FinishedAt.IsZero() && time.Since(p.FinishedAt) >= 5*time.Minute
}

func (f *backfill) add(p podsource.Pod) error {
	if p.HostNetwork {
		return nil
	}
	if f.attachmentsOf == nil {
		return errors.New("Backfill needs a function that returns its attachments")
	}
	entries, err := f.attachmentsOf(p)
	if err != nil {
		return err
	}
	if len(entries) == 0 && len(p.ContainerIDs) == 0 && (len(p.IPs) == 0 || p.MoreIPs) && !p.HasFinished() { // it is starting
		f.notListedSince(p.StartedAt)
	}
	for _, id := range p.ContainerIDs {
		f.listed[id] = true // also without an attachment, as if its reservation can't be read
	}
	for _, e := range entries {
		if err := e.normalize(); err != nil {
			return err
		}
		f.listed[e.ContainerID] = true
		f.entries = append(f.entries, e)
	}
	return nil
}
