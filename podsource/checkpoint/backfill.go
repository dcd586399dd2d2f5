// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Backfill writes the first file: of the attachments that attachmentsOf makes of
// the pods that source sees. It is for the first start of an agent, or one after
// which a damaged file was moved away, before it serves. Pods in the node's
// network have none, and are not asked about.
//
// A source that sees no pod at all must vouch for it (R9): for an empty record,
// give it podsource.Static(podsource.Vouched(nil)). A pod of which neither
// containers nor addresses are known, and nothing becomes, is
// podsource.ErrIncomplete: its attachment may be there (R4). Where a file is
// there already Backfill is [fs.ErrExist] and changes nothing, so an agent may
// call it at every start.
func (c *Checkpoint) Backfill(ctx context.Context, source podsource.Source,
	attachmentsOf func(podsource.Pod) ([]Entry, error)) error {
	doing := "writing the first record " + c.path
	if s := c.state.Load(); s != nil && s.written {
		return fmt.Errorf("%s: %w", doing, fs.ErrExist)
	}
	pods, err := source.Pods(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if len(pods) == 0 {
		return fmt.Errorf("%s: the source sees no pod at all, and does not vouch for it", doing)
	}
	items := []*item{}
	for _, p := range pods {
		if p.HostNetwork {
			continue
		}
		if items, err = addOf(items, p, attachmentsOf); err != nil {
			return fmt.Errorf("%s: pod %s (UID %q): %w", doing, p.NamespacedName, p.UID, err)
		}
	}
	return c.change(doing, func(s *state) ([]*item, error) {
		if _, err := os.Lstat(c.path); s.written || err == nil && !c.unsure {
			return nil, fs.ErrExist
		}
		return items, nil
	})
}

// addOf adds the attachments of a pod. One that is there already was seen twice.
func addOf(items []*item, p podsource.Pod, attachmentsOf func(podsource.Pod) ([]Entry, error)) ([]*item, error) {
	if attachmentsOf == nil {
		return nil, errors.New("nobody says which attachments it has")
	}
	entries, err := attachmentsOf(p)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 && len(p.ContainerIDs) == 0 && len(p.IPs) == 0 {
		return nil, fmt.Errorf("neither its containers nor its addresses are known: %w", podsource.ErrIncomplete)
	}
	for _, e := range entries {
		added, err := complete(e)
		if err != nil {
			return nil, err
		}
		if i, found := find(items, e.Key); !found {
			items = slices.Insert(items, i, added)
		}
	}
	return items, nil
}
