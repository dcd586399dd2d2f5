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

// Backfill adds to the record who was attached while it was not kept: the
// attachments that attachmentsOf makes of the pods that source sees. Where there is
// no file it writes the first one. Call it at every start, before the agent serves,
// and again, when Lag has passed twice and while the agent serves, until it is
// [fs.ErrExist]: then nothing is left to learn, nobody is asked and nothing changed.
//
// What the source can't list yet is not recorded, and the record does not speak of
// it: what was reserved less than Options.Lag before the source was asked and up to
// Options.Lag after the record was opened, by an ADD that was in flight (hazard 52),
// or since the start of a pod of which neither container nor address is known (R4).
//
// Several entries of a [podsource.Union] may be about one pod, and each of them is
// asked about. Pods in the node's network, and those that have been finished for five
// minutes, are not: they have no attachment any more (hazard 61). What is recorded
// already, or was removed meanwhile, stays as it is.
//
// Where the source, or a member of it that is not supplementary, sees no other pod, it
// must declare that it is authoritative (R9); podsource.AllowEmpty lets the caller assert
// that. Each of Options.Networks needs a member that speaks of it and is not
// supplementary. A gap of the source stays a gap of the record, unless another such member
// speaks of it. Where all members name one form of container IDs only, as a runtime does,
// the record has a gap until then for every other form (hazard 49).
//
// With an error nothing was changed. The agent may go on and try again: without a file Add
// refuses, and the record does not speak of what it lacks.
func (c *Checkpoint) Backfill(ctx context.Context, source podsource.Source,
	attachmentsOf func(podsource.Pod) ([]Entry, error)) error {
	doing := "adding to the record " + c.path
	if !c.filling.TryLock() {
		return fmt.Errorf("%s: somebody else is doing it", doing)
	}
	defer c.filling.Unlock()
	if s := c.state.Load(); s != nil && !slices.ContainsFunc(s.gaps, func(g podsource.Gap) bool { return g.But == "" }) {
		return fmt.Errorf("%s: %w", doing, fs.ErrExist)
	}
	c.watchRemoved(true)
	defer c.watchRemoved(false)
	f := filling{attachmentsOf: attachmentsOf, networks: c.networks, asked: time.Now(), lag: c.lag}
	if s := c.state.Load(); s != nil {
		f.stepped = s.steppedAt(f.asked)
		f.slack = f.stepped.within(c.lag, f.asked)
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
		next.gaps = joined(append(narrowed(gaps, f.form, f.before, now.Round(0).Add(c.lag)), common(gaps, f.gaps)...))
		next.at, next.stepped = readingOf(now), f.stepped
		for _, added := range f.items {
			if i, found := find(next.items, added.Key); !found && !c.removed[added.Key] {
				next.items = slices.Insert(next.items, i, added)
			}
		}
		return next, nil
	})
}

// watchRemoved begins or ends to take note of what is removed.
func (c *Checkpoint) watchRemoved(begin bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed = nil; begin {
		c.removed = make(map[Key]bool)
	}
}

// A filling is what a Backfill learns.
type filling struct {
	attachmentsOf func(podsource.Pod) ([]Entry, error)
	networks      []string // of the record
	asked         time.Time
	lag           time.Duration   // of the source
	stepped       stepped         // of the clock
	slack         time.Duration   // by how much what was reserved within the lag may bear another timestamp
	items         []*item         // sorted by key
	before        time.Time       // all are listed whose address was reserved before this
	form          podsource.Form  // if its ID is of this form
	gaps          []podsource.Gap // and but for those whose address was reserved in these
}

func (f *filling) ask(ctx context.Context, source podsource.Source) error {
	all, err := source.Pods(ctx)
	if err != nil {
		return err
	}
	f.before = f.asked.Add(-f.lag - f.slack).Round(0) // an AsOf has no monotonic part either
	if err := f.complete(all.Members()); err != nil {
		return err
	}
	for _, a := range all.Members() {
		a.Pods = slices.DeleteFunc(slices.Clone(a.Pods), finishedLongAgo)
		if len(a.Pods) == 0 && !a.Authoritative && !a.Supplementary {
			return fmt.Errorf("source %q lists no pod at all: where the node may be empty wrap it in podsource.AllowEmpty; the record takes no Add before", a.Source)
		}
		if !a.AsOf.IsZero() {
			f.notSince(a.AsOf)
			f.notSince(a.AsOf.Add(-f.lag - f.slack))
		}
		for _, p := range a.Pods {
			if err := f.add(p); err != nil {
				return fmt.Errorf("pod %s (UID %q): %w", p.NamespacedName, p.UID, err)
			}
		}
	}
	return nil
}

// complete takes note of what the members of an answer were not told, and of which
// containers they could mean. It is an error where they do not speak of all networks of
// the record: what that says afterwards is that nobody else lives. A supplementary one
// may lack anybody.
func (f *filling) complete(members []podsource.Answer) error {
	f.form = podsource.AnyForm
	for _, network := range f.networks {
		of := slices.DeleteFunc(slices.Clone(members), func(a podsource.Answer) bool {
			return a.Supplementary || a.Networks != nil && !slices.Contains(a.Networks, network)
		})
		if len(of) == 0 {
			return fmt.Errorf("no source lists all pods of network %q; ask a runtime, kubelet or the API server, too", network)
		}
		wasTold := func(a podsource.Answer) bool { return len(a.Gaps) == 0 }
		if slices.ContainsFunc(of, wasTold) {
			of = slices.DeleteFunc(of, func(a podsource.Answer) bool { return !wasTold(a) })
		}
		for _, a := range of {
			f.gaps = append(f.gaps, a.Gaps...)
		}
		switch form := formOf(of, network); {
		case f.form == podsource.AnyForm:
			f.form = form
		case form != podsource.AnyForm && form != f.form:
			f.form = ""
		}
	}
	return nil
}

// formOf returns a form of container IDs of which the members list all in a network:
// any where none of them says which it means (R14).
func formOf(members []podsource.Answer, network string) podsource.Form {
	var forms []podsource.Form
	for _, a := range members {
		forms = append(forms, a.Forms...)
		for _, n := range a.Names {
			if n.Networks == nil || slices.Contains(n.Networks, network) {
				forms = append(forms, n.Form)
			}
		}
	}
	switch {
	case len(forms) == 0, slices.Contains(forms, podsource.AnyForm):
		return podsource.AnyForm
	case slices.Contains(forms, podsource.Hex64):
		return podsource.Hex64
	}
	return forms[0]
}

// notSince takes note that somebody may not be listed whose address was reserved
// since a time. One that is unknown or lies in the future is any (hazard 36).
func (f *filling) notSince(t time.Time) {
	switch {
	case t.After(f.asked):
		f.before = time.Time{}
	case t.Before(f.before):
		f.before = t
	}
}

// finishedLongAgo reports whether the pod holds nothing any more. One of which
// nobody knows when it finished may have done so just now.
func finishedLongAgo(p podsource.Pod) bool {
	return !p.FinishedAt.IsZero() && time.Since(p.FinishedAt) >= 5*time.Minute
}

// add adds the attachments of a pod. One that is there already was seen twice.
func (f *filling) add(p podsource.Pod) error {
	if p.HostNetwork {
		return nil
	}
	if f.attachmentsOf == nil {
		return errors.New("nobody says which attachments it has")
	}
	entries, err := f.attachmentsOf(p)
	if err != nil {
		return err
	}
	starting := len(p.ContainerIDs) == 0 && (len(p.IPs) == 0 || p.MoreIPs) && !p.HasFinished()
	if starting && len(entries) == 0 {
		f.notSince(p.StartedAt)
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
