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
// there already Backfill is [fs.ErrExist] and changes nothing.
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
	entries := []Entry{}
	for _, p := range pods {
		if p.HostNetwork {
			continue
		}
		of, err := attachmentsOf(p)
		if err == nil && len(of) == 0 && len(p.ContainerIDs) == 0 && len(p.IPs) == 0 {
			err = fmt.Errorf("neither its containers nor its addresses are known: %w", podsource.ErrIncomplete)
		}
		of = slices.Clone(of)
		for i := range of {
			err = errors.Join(err, complete(&of[i]))
		}
		if err != nil {
			return fmt.Errorf("%s: pod %s (UID %q): %w", doing, p.NamespacedName, p.UID, err)
		}
		for _, e := range of {
			if i, found := find(entries, e.Key); !found { // else two sandboxes of a pod, say, seen twice
				entries = slices.Insert(entries, i, e)
			}
		}
	}
	return c.change(doing, func(s *state) ([]Entry, error) {
		if _, err := os.Lstat(c.path); s.written || err == nil && !c.unsure {
			return nil, fs.ErrExist
		}
		return entries, nil
	})
}
