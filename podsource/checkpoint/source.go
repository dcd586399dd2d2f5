// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Source reads the record that another process, or another part of this one,
// writes. Make it with [New].
type Source struct {
	path, bootID string
	asking
}

// New returns the record at path as a source, for whoever does not write it. It
// reads the file whenever it is asked, follows links, and takes no lock. It checks
// its arguments and touches no file but the kernel's boot ID.
//
// The file tells nothing of what was reserved since it was last written (hazard 51):
// of that the source names those who are recorded, and does not speak of the others.
func New(path string, opts Options) (*Source, error) {
	path, opts, err := opts.checked(path)
	if err != nil {
		return nil, fmt.Errorf("reading the record of attachments %q: %w", path, err)
	}
	return &Source{path, opts.BootID, asking{slices.Clone(opts.Networks), opts.Timeout, make(chan struct{}, 1)}}, nil
}

// Rank returns [podsource.RankCache].
func (*Source) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns the live attachments of the record, one pod each, or
// [podsource.ErrNotHere] where nothing was ever recorded. See the package comment
// for what the answer declares, and for its errors.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	return s.answer(ctx, func() ([]Entry, []podsource.Gap, error) {
		r, sameBoot, err := load(s.path, s.bootID)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("%w: %w", podsource.ErrNotHere, err)
		}
		if err != nil {
			return nil, nil, err
		}
		return r.Entries, r.gapsSince(sameBoot, now(), time.Time{}), nil
	})
}

// Rank returns [podsource.RankCache].
func (c *Checkpoint) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns the live attachments of the record, one pod each, or
// [podsource.ErrNotHere] where nothing was ever recorded. It reads no file. See
// the package comment for what the answer declares, and for its errors.
func (c *Checkpoint) Pods(ctx context.Context) (podsource.Answer, error) {
	return c.answer(ctx, func() ([]Entry, []podsource.Gap, error) {
		s := c.state.Load()
		switch {
		case s == nil:
			return nil, nil, fmt.Errorf("asking the record %s: %w", c.path, fs.ErrClosed)
		case !s.written:
			return nil, nil, fmt.Errorf("%w: the record %s was never written", podsource.ErrNotHere, c.path)
		}
		return s.entries(), s.gapsAt(time.Now()), nil // of the state that was looked at: c may be closed by now
	})
}

// asking is how a record answers.
type asking struct {
	networks []string
	timeout  time.Duration
	busy     chan struct{} // of one element
}

// answer makes pods of the entries that are not surely dead, and declares that
// there are no others in these networks but those of the gaps: what is not here
// was not recorded, or not in this boot.
func (q *asking) answer(ctx context.Context, read func() ([]Entry, []podsource.Gap, error)) (podsource.Answer, error) {
	a := podsource.Answer{Source: "checkpoint"}
	live, gaps, err := bounded(ctx, q, func(ctx context.Context) (live []Entry, gaps []podsource.Gap, err error) {
		all, gaps, err := read()
		if err != nil {
			return nil, nil, err
		}
		live, _, err = divide(ctx, all)
		return live, gaps, err
	})
	if err != nil {
		return a, err
	}
	for _, e := range live {
		a.Pods = append(a.Pods, podsource.Pod{
			NamespacedName: e.Pod, UID: e.UID, ContainerIDs: []string{e.ContainerID}, IPs: e.IPs, Network: e.Network,
		})
	}
	a.Networks, a.Authoritative, a.Gaps, a.Note = q.networks, true, gaps, note(gaps)
	a.Names = []podsource.Names{{Form: podsource.AnyForm, Networks: q.networks}}
	return a, nil
}

// divide parts the entries whose network namespaces are surely gone from the others.
func divide(ctx context.Context, all []Entry) (live, gone []Entry, err error) {
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

// note tells people of gaps.
func note(gaps []podsource.Gap) string {
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
		if g.But != "" {
			all[len(all)-1] += fmt.Sprintf(" (but for container IDs of the form %s)", g.But)
		}
	}
	return "it says nothing of reservations that were made while it was not kept, or may not have been: " + strings.Join(all, ", ")
}

// bounded asks, but not for longer than the timeout. A question that goes on after
// that, at a disk or a mount that hangs, is not asked again before it came back.
func bounded[A, B any](ctx context.Context, q *asking, ask func(context.Context) (A, B, error)) (a A, b B, err error) {
	limit := fmt.Errorf("asking the record took longer than %v: does its disk hang, or the mount of a recorded namespace? %w",
		q.timeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, limit)
	defer cancel()
	if ctx.Err() != nil {
		return a, b, context.Cause(ctx)
	}
	select {
	case q.busy <- struct{}{}:
	case <-ctx.Done():
		return a, b, fmt.Errorf("an earlier question has not come back: %w", context.Cause(ctx))
	}
	type answer struct {
		a   A
		b   B
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		var got answer
		defer func() {
			if p := recover(); p != nil {
				got.err = fmt.Errorf("asking the record: panic: %v\n%s", p, debug.Stack())
			}
			<-q.busy
			answered <- got
		}()
		got.a, got.b, got.err = ask(ctx)
	}()
	var got answer
	select {
	case got = <-answered:
	case <-ctx.Done():
	}
	if late := context.Cause(ctx); late != nil {
		return a, b, late
	}
	return got.a, got.b, got.err
}
