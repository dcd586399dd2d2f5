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

// Backfill writes the first file: of the attachments that attachmentsOf makes of
// the pods that source sees. It is for the first start of an agent, or one after
// which a damaged file was moved away, before it serves. Several entries of a
// [podsource.Union] may be about one pod, and each of them is asked about. Not
// asked about are pods in the node's network, and those that have been finished
// for five minutes: they have no attachment any more (hazard 61).
//
// Where the source, or a member of it that is not supplementary, sees no other
// pod, it must declare that it is authoritative (R9); podsource.AllowEmpty is the
// caller's word for it. A pod of which neither containers nor addresses are known,
// and nothing becomes, is podsource.ErrIncomplete, unless it has finished: its
// attachment may be there (R4). Where a file is there already Backfill is
// [fs.ErrExist] and changes nothing, so an agent may call it at every start.
func (c *Checkpoint) Backfill(ctx context.Context, source podsource.Source,
	attachmentsOf func(podsource.Pod) ([]Entry, error)) error {
	doing := "writing the first record " + c.path
	if s := c.state.Load(); s != nil && s.written {
		return fmt.Errorf("%s: %w", doing, fs.ErrExist)
	}
	all, err := source.Pods(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	items := []*item{}
	for _, a := range all.Members() {
		a.Pods = slices.DeleteFunc(slices.Clone(a.Pods), finishedLongAgo)
		if len(a.Pods) == 0 && !a.Authoritative && !a.Supplementary {
			return fmt.Errorf("%s: a source (%q) sees no pod at all, and does not declare that there is none", doing, a.Source)
		}
		for _, p := range a.Pods {
			if items, err = addOf(items, p, attachmentsOf); err != nil {
				return fmt.Errorf("%s: pod %s (UID %q): %w", doing, p.NamespacedName, p.UID, err)
			}
		}
	}
	return c.change(doing, func(s *state) ([]*item, error) {
		if _, err := os.Lstat(c.path); s.written || err == nil && !c.dirty {
			return nil, fs.ErrExist
		}
		return items, nil
	})
}

// finishedLongAgo reports whether the pod holds nothing any more. One of which
// nobody knows when it finished may have done so just now.
func finishedLongAgo(p podsource.Pod) bool {
	return !p.FinishedAt.IsZero() && time.Since(p.FinishedAt) >= 5*time.Minute
}

// addOf adds the attachments of a pod. One that is there already was seen twice.
func addOf(items []*item, p podsource.Pod, attachmentsOf func(podsource.Pod) ([]Entry, error)) ([]*item, error) {
	if p.HostNetwork {
		return items, nil
	}
	if attachmentsOf == nil {
		return nil, errors.New("nobody says which attachments it has")
	}
	entries, err := attachmentsOf(p)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 && len(p.ContainerIDs) == 0 && len(p.IPs) == 0 && !p.HasFinished() {
		return nil, fmt.Errorf("neither its containers nor its addresses are known: %w", podsource.ErrIncomplete)
	}
	for _, e := range entries {
		added, err := normalize(e)
		if err != nil {
			return nil, err
		}
		if i, found := find(items, e.Key); !found {
			items = slices.Insert(items, i, added)
		}
	}
	return items, nil
}
