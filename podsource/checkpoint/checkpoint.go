// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// ErrLocked is returned, wrapped, by [Open] if the record, or another one in its directory, is
// already open for writing, in this process or in another one. It is returned by all changes and by
// Pods after the directory was moved, until the record is opened again (hazard 96): then another
// process may have opened it.
var ErrLocked = errors.New("record of attachments is open for writing elsewhere, or another process has locked its directory (lslocks)")

// A Checkpoint is a record that is open for writing. It is a [podsource.Source].
// Its methods may be called from several goroutines.
//
// While it is open, only the record in memory counts: each change writes the whole
// file again, also if another process has changed it.
type Checkpoint struct {
	place
	lock  *os.File              // the directory
	state atomic.Pointer[state] // the state itself is immutable

	mu      sync.Mutex   // held during a change; guards the fields below
	dirty   bool         // the file may have a state whose commit returned an error
	removed map[Key]bool // the keys removed during a Backfill; nil without one
}

// state is the content of the file.
type state struct {
	entries map[Key]Entry // nil: the record is closed
	gap     gap
	wall    time.Time // the clock when gap was computed, without monotonic clock
	mono    time.Time // the same; only its monotonic clock counts
	stepped time.Time // when a step of the clock was last seen
	written bool      // false: there is no file
}

// at returns s as of now. If the clock was set, a gap that had not ended has timestamps of the old
// and of the new clock.
func (s *state) at(now time.Time) *state {
	next := *s
	next.wall, next.mono = now.Round(0), now
	if step := next.wall.Sub(s.wall) - now.Sub(s.mono); step.Abs() > clockTolerance {
		next.stepped = now
		if s.gap.has(s.wall) {
			if next.gap.To = s.gap.To.Add(step); step < 0 {
				next.gap = gap{To: s.gap.To} // timestamps don't show when it began
			}
		}
	}
	return &next
}

func (s *state) sorted() []Entry {
	return slices.SortedFunc(maps.Values(s.entries), func(a, b Entry) int { return a.compare(b.Key) })
}

// Open opens the record at path for writing. Only one writer can have it open, which locks its
// directory; for a second one Open returns [ErrLocked] at once. The directory must exist, and have
// no other record. A file that can't be read is an error ([ErrVersion], [ErrCorrupt]). A missing
// file is not, but a link to one is, since links are followed. Call [Checkpoint.Backfill] next: the
// record does not know attachments made since the file was last written.
func Open(path string, opts Options) (c *Checkpoint, err error) {
	p, err := opts.validate(path)
	if err == nil {
		p.path, err = resolve(p.path)
	}
	if err != nil {
		return nil, err
	}
	c = &Checkpoint{place: p}
	if c.lock, err = locked(filepath.Dir(p.path)); err != nil {
		return nil, err
	}
	s, err := p.load(p.opts.Lag)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = c.lock.Close() // nothing was written
		return nil, err
	}
	c.state.Store(s)
	return c, nil
}

// Add records an attachment, and replaces an entry with the same key. After Add
// returns nil, the entry survives a crash. After an error nothing is recorded, and
// the ADD must fail. Before the first [Checkpoint.Backfill] the error is [fs.ErrNotExist].
func (c *Checkpoint) Add(e Entry) error {
	return c.change("recording "+e.Key.String(), func(s *state) (bool, error) {
		if !s.written {
			return false, fmt.Errorf("%w: call Backfill before the first Add, otherwise older attachments would be missing", fs.ErrNotExist)
		}
		err := e.normalize()
		s.entries[e.Key] = e
		return true, err
	})
}

// Remove removes the entry of an attachment. A missing entry is no error, so that a
// DEL can be repeated. After an error the entry is still recorded.
func (c *Checkpoint) Remove(k Key) error {
	return c.change("removing "+k.String(), func(s *state) (bool, error) {
		if c.removed != nil {
			c.removed[k] = true
		}
		_, found := s.entries[k]
		delete(s.entries, k)
		return found, nil
	})
}

// watch makes Remove note keys, or ends that.
func (c *Checkpoint) watch(removed map[Key]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = removed
}

// Prune removes the entries that Pods leaves out, those whose network namespaces have certainly
// ended, and returns them.
func (c *Checkpoint) Prune(ctx context.Context) (gone []Entry, err error) {
	_, ended, _ := divide(ctx, c.Entries(), c.opts.Nested) // an unknown one has not ended
	err = c.change("removing attachments whose network namespaces have ended", func(s *state) (bool, error) {
		for _, e := range ended {
			if s.entries[e.Key].NetNS == e.NetNS { // else it was removed or recorded again meanwhile
				delete(s.entries, e.Key)
				gone = append(gone, e)
			}
		}
		return len(gone) > 0, context.Cause(ctx)
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

// Get returns the entry of an attachment, and whether there is one. Its addresses must not be changed.
func (c *Checkpoint) Get(k Key) (e Entry, found bool) {
	e, found = c.state.Load().entries[k]
	return e, found
}

// Entries returns all entries, sorted by key, including those that
// [Checkpoint.Prune] would remove. It returns none if there is no file, or after
// Close. The addresses must not be changed.
func (c *Checkpoint) Entries() []Entry {
	return c.state.Load().sorted()
}

// Close writes the time until which the record was kept, and lets another process open it. After an
// error the record does not speak of reservations made since its last change.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state.Swap(new(state))
	defer func() { _ = c.lock.Close() }() // nothing was written through it
	if !s.written {                       // or it is closed already
		return nil
	}
	return c.commit("closing the record", s.at(time.Now()))
}

// change commits a state that update has changed.
func (c *Checkpoint) change(doing string, update func(*state) (changed bool, err error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state.Load()
	if s.entries == nil {
		return fmt.Errorf("%s: %w", doing, fs.ErrClosed)
	}
	next := s.at(time.Now())
	next.entries = maps.Clone(s.entries)
	changed, err := update(next)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if changed || c.dirty && s.written {
		if err := c.commit(doing, next); err != nil {
			return err
		}
		c.state.Store(next)
	}
	return nil
}

// commit writes a state. After an error the file may have it or not.
func (c *Checkpoint) commit(doing string, s *state) error {
	now, sinceBoot := time.Now(), boottime.Since()
	r := record{c.opts.BootID, c.opts.Networks, now.Round(0).UTC(), sinceBoot, 0, s.gap, append([]Entry{}, s.sorted()...)}
	if !s.stepped.IsZero() {
		r.Stepped = max(1, sinceBoot-now.Sub(s.stepped)) // one if the time since the boot is unknown
	}
	renamed, err := replace(c.path, c.lock, r)
	if c.dirty = err != nil && (c.dirty || renamed); err != nil {
		return fmt.Errorf("%s in %s: %w", doing, c.path, err)
	}
	return nil
}
