// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Source reads a record that another process, or another part of this one, writes.
// Use [New] to make one.
type Source struct {
	path, bootID string
	networks     []string
}

// New returns the record at path as a source, for programs that do not write it. Each
// call of Pods reads the file; it follows symbolic links and takes no lock. New itself
// reads only the kernel's boot ID. Invalid arguments are an error.
//
// The answer has a gap since the file was last written (hazard 51): it names the
// recorded containers, and does not speak of other reservations of that time.
func New(path string, opts Options) (*Source, error) {
	path, opts, err := opts.validate(path)
	if err != nil {
		return nil, fmt.Errorf("reading the record of attachments %q: %w", path, err)
	}
	return &Source{path, opts.BootID, slices.Clone(opts.Networks)}, nil
}

// Rank returns [podsource.RankCache].
func (*Source) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns one pod for each live attachment of the record, or
// [podsource.ErrNotHere] if there is no file. See the package comment for the
// declarations and other errors.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	return answer(ctx, s.networks, func() ([]Entry, []podsource.Gap, error) {
		r, sameBoot, err := load(s.path, s.bootID)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("%w: %w", podsource.ErrNotHere, err)
		}
		if err != nil {
			return nil, nil, err
		}
		return r.Entries, r.gapsSince(sameBoot, readClocks(), time.Time{}), nil
	})
}

// Rank returns [podsource.RankCache].
func (c *Checkpoint) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns one pod for each live attachment of the record, or
// [podsource.ErrNotHere] if it was never written. It does not read the file. After
// Close the error is [fs.ErrClosed]. See the package comment for the declarations and
// other errors.
func (c *Checkpoint) Pods(ctx context.Context) (podsource.Answer, error) {
	return answer(ctx, c.networks, func() ([]Entry, []podsource.Gap, error) {
		s := c.state.Load()
		switch {
		case s == nil:
			return nil, nil, fmt.Errorf("reading the record %s: %w", c.path, fs.ErrClosed)
		case !s.written:
			return nil, nil, fmt.Errorf("%w: the record %s was never written", podsource.ErrNotHere, c.path)
		}
		return s.entries(), s.gapsAt(time.Now()), nil // of s, since c may be closed by now
	})
}

// answer returns a pod for each entry of a record that has not certainly ended, and declares
// that there are no other live containers in these networks, except in gaps.
func answer(ctx context.Context, networks []string, read func() ([]Entry, []podsource.Gap, error)) (podsource.Answer, error) {
	a := podsource.Answer{Source: "checkpoint"}
	if ctx.Err() != nil {
		return a, context.Cause(ctx)
	}
	all, gaps, err := read()
	if err != nil {
		return a, err
	}
	live, _, err := divide(ctx, all)
	if err != nil {
		return a, err
	}
	for _, e := range live {
		a.Pods = append(a.Pods, podsource.Pod{
			NamespacedName: e.Pod, UID: e.UID, ContainerIDs: []string{e.ContainerID}, IPs: e.IPs, Network: e.Network,
		})
	}
	a.Networks, a.Authoritative, a.Gaps, a.Note = networks, true, gaps, gapsNote(gaps)
	a.Names, a.AtOnce = podsource.AnyContainer, true
	return a, nil
}

// divide separates entries by whether their network namespaces have certainly ended. It
// stops between two of them when ctx ends.
func divide(ctx context.Context, all []Entry) (live, gone []Entry, err error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	namespaces := make([]NetNS, len(all))
	for i := range all {
		namespaces[i] = all[i].NetNS
	}
	isGone, err := goneOf(ctx, namespaces)
	if err != nil {
		return nil, nil, err
	}
	for i, e := range all {
		if isGone[i] {
			gone = append(gone, e)
		} else {
			live = append(live, e)
		}
	}
	return live, gone, nil
}

// gapsNote describes gaps for people.
func gapsNote(gaps []podsource.Gap) string {
	if len(gaps) == 0 {
		return ""
	}
	text := func(t time.Time, never string) string {
		if t.IsZero() {
			return never
		}
		return t.UTC().Format(time.RFC3339)
	}
	var all []string
	for _, g := range gaps {
		all = append(all, text(g.From, "ever")+" to "+text(g.To, "now"))
		if g.But != 0 {
			all[len(all)-1] += " (except sandboxes)"
		}
	}
	return "the record may lack attachments of these times, so it does not speak of their reservations: " + strings.Join(all, ", ")
}
