// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// ErrLocked is returned, wrapped, by [Open] while the record is open for writing
// already, in this process or in another one.
var ErrLocked = errors.New("record of attachments is open for writing elsewhere")

// A Checkpoint is a record that is open for writing. It is a [podsource.Source].
// Its methods may be called from several goroutines.
//
// While it is open the record in memory is the truth: a change writes the file
// anew, whatever somebody else made of it.
type Checkpoint struct {
	path, bootID string
	lag          time.Duration
	asking
	state   atomic.Pointer[state] // nil when closed; what it points to is never changed
	filling sync.Mutex            // held during a Backfill

	mu      sync.Mutex // held during a change; guards what follows, and the storing of state
	unlock  func()
	dirty   bool         // the file has a content of which its writer was told that it failed
	removed map[Key]bool // since a Backfill began that has not ended; else nil
}

// state is what the file holds.
type state struct {
	items   []*item         // sorted by key; what they point to is never changed
	gaps    []podsource.Gap // never changed; see gapsAt
	at      reading         // by which gaps are right
	stepped stepped
	written bool // false: there is no file
}

// with is s with other items.
func (s *state) with(items []*item) *state {
	next := *s
	next.items, next.written = items, true
	return &next
}

// find looks a key up in items, which are sorted by it.
func find(items []*item, k Key) (int, bool) {
	return slices.BinarySearchFunc(items, k, func(i *item, k Key) int { return i.compare(k) })
}

func (s *state) entries() []Entry {
	out := make([]Entry, len(s.items))
	for i := range out {
		out[i] = s.items[i].copy()
	}
	return out
}

// Open opens the record at path for writing, of which there is one at a time:
// a second one is [ErrLocked] at once. Its directory must be there. A file that
// can't be read is an error ([ErrVersion], [ErrCorrupt]); none is not, and then
// [Checkpoint.Backfill] comes before the first Add.
//
// A path that is a link is the file that it leads to, for all who open it; a link
// to nothing is an error. Nothing is known of those who were attached since the file
// was last written: see [Checkpoint.Backfill].
func Open(path string, opts Options) (c *Checkpoint, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("opening the record of attachments %q: %w", path, err)
		}
	}()
	file, opts, err := opts.checked(path)
	if err != nil {
		return nil, err
	}
	if file, err = resolved(file); err != nil {
		return nil, err
	}
	unlock, err := lock(file + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if err := removeIfExists(file + ".tmp"); err != nil {
		return nil, fmt.Errorf("removing what a crash left: %w", err)
	}
	opened := now()
	s := &state{gaps: []podsource.Gap{{}}, at: readingOf(opened.wall)}
	switch r, sameBoot, err := load(file, opts.BootID); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		s.written, s.gaps = true, r.gapsSince(sameBoot, opened, opened.wall.Round(0).Add(opts.Lag))
		s.stepped = stepped{r.stepSince(sameBoot, opened).Abs(), opened.wall}
		s.items = make([]*item, len(r.Entries))
		for i, e := range r.Entries {
			if s.items[i], err = newItem(e); err != nil {
				return nil, fmt.Errorf("%s: %w", e.Key, err)
			}
		}
	}
	c = &Checkpoint{
		path: file, bootID: opts.BootID, lag: opts.Lag, unlock: unlock,
		asking: asking{slices.Clone(opts.Networks), opts.Timeout, make(chan struct{}, 1)},
	}
	c.state.Store(s)
	return c, nil
}

// Add records an attachment, or records it anew. When it returns nil the entry
// outlives a crash. With an error nothing was recorded, and the ADD that this is
// the end of has failed. Without a file it is [fs.ErrNotExist]: see
// [Checkpoint.Backfill].
func (c *Checkpoint) Add(e Entry) error {
	added, err := normalize(e)
	if err != nil {
		return fmt.Errorf("recording %s: %w", e.Key, err)
	}
	return c.change("recording "+e.Key.String(), func(s *state) (*state, error) {
		if !s.written {
			return nil, fmt.Errorf("%w: call Backfill before the first Add, else older attachments would be forgotten", fs.ErrNotExist)
		}
		next := slices.Clone(s.items)
		i, found := find(next, e.Key)
		if found {
			next[i] = added
		} else {
			next = slices.Insert(next, i, added)
		}
		return s.with(next), nil
	})
}

// Remove forgets an attachment. One that is not recorded is no error, so that a
// DEL can be repeated. With an error the entry is there still.
func (c *Checkpoint) Remove(k Key) error {
	return c.change("forgetting "+k.String(), func(s *state) (*state, error) {
		if c.removed != nil {
			c.removed[k] = true
		}
		i, found := find(s.items, k)
		if !found {
			return nil, nil
		}
		return s.with(slices.Delete(slices.Clone(s.items), i, i+1)), nil
	})
}

// Prune forgets the attachments whose network namespaces are surely gone, those
// that Pods leaves out, and returns them. Where Pods is an error, nothing is
// forgotten, and the error is that. A record that was never written has nothing to
// forget, which is no error.
func (c *Checkpoint) Prune(ctx context.Context) (gone []Entry, err error) {
	const doing = "forgetting what is gone"
	_, gone, err = bounded(ctx, &c.asking, func(ctx context.Context) (live, gone []Entry, err error) {
		return divide(ctx, c.Entries())
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	err = c.change(doing, func(s *state) (*state, error) {
		var next *state
		if next, gone = s.without(gone); len(gone) == 0 {
			return nil, nil
		}
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

// without is s without those of the entries that are in it still, and these. One
// that was recorded anew, with another namespace, is another one.
func (s *state) without(entries []Entry) (next *state, those []Entry) {
	next = s.with(slices.Clone(s.items))
	for _, e := range entries {
		if i, found := find(next.items, e.Key); found && next.items[i].NetNS == e.NetNS {
			next.items, those = slices.Delete(next.items, i, i+1), append(those, e)
		}
	}
	return next, those
}

// Get returns the entry of one attachment, which a DEL or CHECK may need, and
// whether there is one.
func (c *Checkpoint) Get(k Key) (Entry, bool) {
	if s := c.state.Load(); s != nil {
		if i, found := find(s.items, k); found {
			return s.items[i].copy(), true
		}
	}
	return Entry{}, false
}

// Entries returns what is recorded, sorted by key, also what [Checkpoint.Prune]
// would forget. Without a file, or when closed, that is nothing.
func (c *Checkpoint) Entries() []Entry {
	if s := c.state.Load(); s != nil {
		return s.entries()
	}
	return nil
}

// Close notes until when the record was kept, and lets another process open it.
// What was changed is on the disk already: an error means that the record can't
// speak for the time since the last change.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state.Swap(nil)
	if s == nil {
		return nil
	}
	defer c.unlock()
	if !s.written {
		return nil
	}
	return c.commit("closing the record", s)
}

// change commits what becomes of the state; nil is that it stays as it is.
func (c *Checkpoint) change(doing string, become func(*state) (*state, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state.Load()
	if s == nil {
		return fmt.Errorf("%s: %w", doing, fs.ErrClosed)
	}
	next, err := become(s)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if next == nil {
		if !c.dirty || !s.written {
			return nil
		}
		next = s // the file may say otherwise
	}
	if err := c.commit(doing, next); err != nil {
		return err
	}
	c.state.Store(next)
	return nil
}

// commit writes a state. With an error the file may have it or not.
func (c *Checkpoint) commit(doing string, s *state) error {
	at := now()
	content, err := encode(record{BootID: c.bootID, Written: at.wall.Round(0).UTC(), SinceBoot: at.boot, Gaps: s.gapsAt(at.wall)}, s.items)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	renamed, err := replace(c.path, content)
	if err != nil {
		c.dirty = c.dirty || renamed
		return fmt.Errorf("%s in %s: %w", doing, c.path, err)
	}
	c.dirty = false
	return nil
}
