// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
)

// ErrLocked is returned, wrapped, by [Open] while the record is open for writing
// already, in this process or in another one.
var ErrLocked = errors.New("record of attachments is open for writing elsewhere")

// Options say what a record is about, and how it is read.
type Options struct {
	// Networks are those of which the agent serves every ADD. Of them, and of no
	// other, the record says who lives. There is no default: to ask a record
	// without them is an error.
	Networks []string
	// BootID names the boot of the kernel in which the recorded namespaces live.
	// A record of another boot is empty. Zero is the kernel's own,
	// /proc/sys/kernel/random/boot_id, and on other systems than Linux unknown:
	// there a record outlives the boot.
	BootID string
}

func (o Options) bootID() (string, error) {
	if o.BootID != "" {
		return o.BootID, nil
	}
	id, err := kernelBootID()
	if err != nil {
		// Not %w: this must not look as if there were no record.
		return "", fmt.Errorf("reading the kernel's boot ID, which Options.BootID can stand for: %v", err) //nolint:errorlint // see above
	}
	return id, nil
}

// A Checkpoint is a record that is open for writing. It is a [podsource.Source].
// Its methods may be called from several goroutines.
//
// While it is open the record in memory is the truth: a change writes the file
// anew, whatever somebody else made of it.
type Checkpoint struct {
	path, bootID string
	networks     []string
	state        atomic.Pointer[state] // nil when closed; what it points to is never changed

	mu     sync.Mutex // held during a change; guards what follows, and the storing of state
	unlock func() error
	dirty  bool // the file has a content of which its writer was told that it failed
}

// state is what the file holds.
type state struct {
	items   []*item // sorted by key; what they point to is never changed
	written bool    // false: there is no file
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
func Open(path string, opts Options) (c *Checkpoint, err error) {
	bootID, err := opts.bootID()
	if err != nil {
		return nil, err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("opening the record %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unlock())
		}
	}()
	if err := removeIfExists(path + ".tmp"); err != nil {
		return nil, fmt.Errorf("removing what a crash left: %w", err)
	}
	entries, err := load(path, bootID)
	written := !errors.Is(err, fs.ErrNotExist)
	if err != nil && written {
		return nil, err
	}
	items := make([]*item, len(entries))
	for i, e := range entries {
		if items[i], err = newItem(e); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Key, err)
		}
	}
	c = &Checkpoint{path: path, bootID: bootID, networks: slices.Clone(opts.Networks), unlock: unlock}
	c.state.Store(&state{items, written})
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
	return c.change("recording "+e.Key.String(), func(s *state) ([]*item, error) {
		if !s.written {
			return nil, fmt.Errorf("%w: older attachments would be forgotten; Backfill first", fs.ErrNotExist)
		}
		next := slices.Clone(s.items)
		i, found := find(next, e.Key)
		if found {
			next[i] = added
			return next, nil
		}
		return slices.Insert(next, i, added), nil
	})
}

// Remove forgets an attachment. One that is not recorded is no error, so that a
// DEL can be repeated. With an error the entry is there still.
func (c *Checkpoint) Remove(k Key) error {
	return c.change("forgetting "+k.String(), func(s *state) ([]*item, error) {
		i, found := find(s.items, k)
		if !found {
			return nil, nil
		}
		return slices.Delete(slices.Clone(s.items), i, i+1), nil
	})
}

// Prune forgets the attachments whose network namespaces are gone, those that
// Pods leaves out, and returns them.
func (c *Checkpoint) Prune() (gone []Entry, err error) {
	err = c.change("forgetting what is gone", func(s *state) ([]*item, error) {
		left := []*item{}
		for _, i := range s.items {
			if i.NetNS.gone() {
				gone = append(gone, i.copy())
			} else {
				left = append(left, i)
			}
		}
		if len(gone) == 0 {
			return nil, nil
		}
		return left, nil
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
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

// Close lets another process open the record. What was changed is on the disk
// already.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Swap(nil) == nil {
		return nil
	}
	return c.unlock()
}

// change commits what becomes of the entries; nil is that they stay as they are.
func (c *Checkpoint) change(doing string, become func(*state) ([]*item, error)) error {
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
		next = s.items // the file may say otherwise
	}
	content, err := encode(c.bootID, next)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	renamed, err := replace(c.path, content)
	if err != nil {
		c.dirty = c.dirty || renamed
		return fmt.Errorf("%s in %s: %w", doing, c.path, err)
	}
	c.dirty = false
	c.state.Store(&state{next, true})
	return nil
}
