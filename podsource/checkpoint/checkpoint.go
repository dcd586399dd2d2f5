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

// ErrLocked is returned, wrapped, by [Open] if the record is already open for writing,
// in this process or in another one.
var ErrLocked = errors.New("record of attachments is open for writing elsewhere")

// A Checkpoint is a record that is open for writing. It is a [podsource.Source].
// Its methods may be called from several goroutines.
//
// While it is open, only the record in memory counts: each change writes the whole
// file again, also if another process has changed it.
type Checkpoint struct {
	path, bootID string
	lag          time.Duration
	networks     []string
	state        atomic.Pointer[state] // nil when closed; the state itself is immutable
	backfilling  sync.Mutex            // held during a Backfill

	mu      sync.Mutex // held during a change; guards the fields below, and stores of state
	unlock  func()
	dirty   bool         // the file may have a state whose commit returned an error
	removed map[Key]bool // the keys removed during a Backfill; nil without one
}

// state is the content of the file.
type state struct {
	items   []*item         // sorted by key; each item is immutable
	gaps    []podsource.Gap // immutable; see gapsAt
	at      reading         // the clocks when gaps were computed
	steps   clockSteps
	written bool // false: there is no file
}

// with returns s with other items.
func (s *state) with(items []*item) *state {
	next := *s
	next.items, next.written = items, true
	return &next
}

// find searches sorted items for a key.
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

// Open opens the record at path for writing. Only one writer can have it open; for a
// second one Open returns [ErrLocked] at once. The directory must exist. A file that
// can't be read is an error ([ErrVersion], [ErrCorrupt]). A missing file is not: then
// [Checkpoint.Backfill] must be called before the first Add.
//
// Open follows symbolic links; a link to a missing file is an error. The record does
// not know attachments made since the file was last written: see
// [Checkpoint.Backfill].
func Open(path string, opts Options) (c *Checkpoint, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("opening the record of attachments %q: %w", path, err)
		}
	}()
	file, opts, err := opts.validate(path)
	if err != nil {
		return nil, err
	}
	if file, err = resolve(file); err != nil {
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
		return nil, fmt.Errorf("removing the temporary file of a crash: %w", err)
	}
	opened := readClocks()
	s := &state{gaps: []podsource.Gap{{}}, at: readingOf(opened.wall)}
	switch r, sameBoot, err := load(file, opts.BootID); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		s.written, s.gaps = true, r.gapsSince(sameBoot, opened, opened.wall.Round(0).Add(opts.Lag))
		s.steps = clockSteps{r.stepSince(sameBoot, opened).Abs(), opened.wall}
		s.items = make([]*item, len(r.Entries))
		for i, e := range r.Entries {
			if s.items[i], err = newItem(e); err != nil {
				return nil, fmt.Errorf("%s: %w", e.Key, err)
			}
		}
	}
	c = &Checkpoint{
		path: file, bootID: opts.BootID, lag: opts.Lag, networks: slices.Clone(opts.Networks), unlock: unlock,
	}
	c.state.Store(s)
	return c, nil
}

// Add records an attachment, and replaces an entry with the same key. After Add
// returns nil, the entry survives a crash. After an error nothing is recorded, and
// the ADD must fail. If there is no file, the error is [fs.ErrNotExist]: see
// [Checkpoint.Backfill].
func (c *Checkpoint) Add(e Entry) error {
	added, err := normalize(e)
	if err != nil {
		return fmt.Errorf("recording %s: %w", e.Key, err)
	}
	return c.change("recording "+e.Key.String(), func(s *state) (*state, error) {
		if !s.written {
			return nil, fmt.Errorf("%w: call Backfill before the first Add, otherwise older attachments would be missing", fs.ErrNotExist)
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

// Remove removes the entry of an attachment. A missing entry is no error, so that a
// DEL can be repeated. After an error the entry is still recorded.
func (c *Checkpoint) Remove(k Key) error {
	return c.change("removing "+k.String(), func(s *state) (*state, error) {
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

// Prune removes the entries that Pods leaves out, those whose network namespaces have
// certainly ended, and returns them. If the namespaces can't be checked, it returns the
// error of Pods and removes nothing. A record that was never written has no entries,
// which is no error.
func (c *Checkpoint) Prune(ctx context.Context) (gone []Entry, err error) {
	const doing = "removing attachments whose network namespaces have ended"
	if _, gone, err = divide(ctx, c.Entries()); err != nil {
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

// without returns s without these entries, and those that it removed. An entry that
// was recorded again meanwhile, with another namespace, is not removed.
func (s *state) without(entries []Entry) (next *state, those []Entry) {
	next = s.with(slices.Clone(s.items))
	for _, e := range entries {
		if i, found := find(next.items, e.Key); found && next.items[i].NetNS == e.NetNS {
			next.items, those = slices.Delete(next.items, i, i+1), append(those, e)
		}
	}
	return next, those
}

// Get returns the entry of an attachment, for a DEL or CHECK, and whether there is
// one.
func (c *Checkpoint) Get(k Key) (Entry, bool) {
	if s := c.state.Load(); s != nil {
		if i, found := find(s.items, k); found {
			return s.items[i].copy(), true
		}
	}
	return Entry{}, false
}

// Entries returns all entries, sorted by key, including those that
// [Checkpoint.Prune] would remove. It returns none if there is no file, or after
// Close.
func (c *Checkpoint) Entries() []Entry {
	if s := c.state.Load(); s != nil {
		return s.entries()
	}
	return nil
}

// Close writes the time until which the record was kept, and lets another process
// open it. All changes are already on the disk. After an error the record does not
// speak of reservations made since its last change.
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

// change commits the state that update returns; nil is no change.
func (c *Checkpoint) change(doing string, update func(*state) (*state, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state.Load()
	if s == nil {
		return fmt.Errorf("%s: %w", doing, fs.ErrClosed)
	}
	next, err := update(s)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if next == nil {
		if !c.dirty || !s.written {
			return nil
		}
		next = s // the file may have another state
	}
	if err := c.commit(doing, next); err != nil {
		return err
	}
	c.state.Store(next)
	return nil
}

// commit writes a state. After an error the file may have it or not.
func (c *Checkpoint) commit(doing string, s *state) error {
	at := readClocks()
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
