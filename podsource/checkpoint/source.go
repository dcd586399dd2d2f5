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

// A Source reads a record that another process, or another part of this one, writes.
// Use [New] to make one.
type Source struct {
	path, bootID string
	responder
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
	return &Source{path, opts.BootID, responder{slices.Clone(opts.Networks), opts.Timeout, make(chan struct{}, 1)}}, nil
}

// Rank returns [podsource.RankCache].
func (*Source) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns one pod for each live attachment of the record, or
// [podsource.ErrNotHere] if there is no file. See the package comment for the
// declarations and other errors.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	return s.answer(ctx, func() ([]Entry, []podsource.Gap, error) {
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
	return c.answer(ctx, func() ([]Entry, []podsource.Gap, error) {
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

// A responder answers Pods with the entries of a record.
type responder struct {
	networks []string
	timeout  time.Duration
	busy     chan struct{} // has an element during a call
}

// answer returns a pod for each entry that has not certainly ended, and declares that
// there are no other live containers in these networks, except in gaps.
func (q *responder) answer(ctx context.Context, read func() ([]Entry, []podsource.Gap, error)) (podsource.Answer, error) {
	a := podsource.Answer{Source: "checkpoint"}
	live, gaps, err := withTimeout(ctx, q, func(ctx context.Context) (live []Entry, gaps []podsource.Gap, err error) {
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
	a.Networks, a.Authoritative, a.Gaps, a.Note = q.networks, true, gaps, gapsNote(gaps)
	a.Names = []podsource.Names{{Form: podsource.AnyForm, Networks: q.networks}}
	return a, nil
}

// divide separates entries by whether their network namespaces have certainly ended.
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
		if g.But != "" {
			all[len(all)-1] += fmt.Sprintf(" (except container IDs of the form %s)", g.But)
		}
	}
	return "the record may lack attachments of these times, so it does not speak of their reservations: " + strings.Join(all, ", ")
}

// withTimeout calls ask and returns after the timeout at the latest. If ask still hangs
// then, at a disk or a mount, it is not called again before it has returned.
func withTimeout[A, B any](ctx context.Context, q *responder, ask func(context.Context) (A, B, error)) (a A, b B, err error) {
	limit := fmt.Errorf("reading the record took longer than %v; check whether its disk or the mount of a recorded namespace hangs: %w",
		q.timeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, limit)
	defer cancel()
	if ctx.Err() != nil {
		return a, b, context.Cause(ctx)
	}
	select {
	case q.busy <- struct{}{}:
	case <-ctx.Done():
		return a, b, fmt.Errorf("an earlier call has not returned: %w", context.Cause(ctx))
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
				got.err = fmt.Errorf("reading the record: panic: %v\n%s", p, debug.Stack())
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
