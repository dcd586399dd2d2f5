// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// A memory is what outlives a process in Options.Memory: first sights, and what was seen of steps
// of the clock. Any number of processes may write it, since a sight says only "this existed then",
// and a lost one only delays.
type memory struct {
	Of    origin            `json:"of"`
	Wall  time.Time         `json:"wall"` // a pair of readings, by which a step between two processes is seen
	Mono  time.Duration     `json:"mono"`
	Boot  time.Duration     `json:"boot"`
	Steps steps             `json:"steps"`
	Dirs  map[string]sights `json:"dirs"` // by the device and inode of the data directory
}

// Sights are those of one data directory.
type sights struct {
	Files    []sight[file]  `json:"files"`
	Finished []sight[podID] `json:"finished"`
}

// An origin is what the times of a memory belong to. CLOCK_MONOTONIC begins anew with each boot,
// and has an offset in a time namespace.
type origin struct {
	BootID        string
	TimeNamespace string
}

// A sight is when something was first seen.
type sight[T comparable] struct {
	What T             `json:"what"`
	Seen time.Duration `json:"seen"`
}

// recall adds to the clock what the memory has.
func (r *Reconciler) recall(ctx context.Context, report *Report) { r.useMemory(ctx, report, false) }

// rememberStep writes a step into the memory as soon as one is seen: this process may end before
// the pass does.
func (r *Reconciler) rememberStep(ctx context.Context, report *Report) {
	if r.clock.unsaved {
		r.remember(ctx, report)
	}
}

// remember replaces the memory with what the clock has seen, and with the steps and the earlier
// sights of other processes.
func (r *Reconciler) remember(ctx context.Context, report *Report) {
	if !r.opts.DryRun {
		r.useMemory(ctx, report, true)
	}
}

// useMemory merges the memory into the clock, and then replaces it if write is true. If it can't,
// or not in time, the clock stays as it is, and the report says why.
func (r *Reconciler) useMemory(ctx context.Context, report *Report, write bool) {
	if r.opts.Memory == "" {
		return
	}
	c := r.clock
	c.files = slices.Clone(c.files)
	used, err := onDisk(ctx, &r.onMemory, &r.opts, func(context.Context) (*clock, error) {
		of, dir, err := originOf(r.store.DataDir())
		if err != nil {
			return nil, err
		}
		if write {
			unlock, err := lockMemory(r.opts.Memory)
			if err != nil {
				return nil, err
			}
			defer unlock()
		}
		m, err := readMemory(r.opts.Memory, of, r.now)
		now := r.now()
		c.recall(&m, dir, now, !write)
		if !write {
			return &c, err
		}
		var mine sights
		for _, f := range c.files {
			mine.Files = append(mine.Files, f.sight())
		}
		for pod, first := range c.finished {
			mine.Finished = append(mine.Finished, sight[podID]{pod, first})
		}
		dirs := make(map[string]sights)
		maps.Copy(dirs, m.Dirs)
		if c.files != nil { // else nothing was listed yet
			dirs[dir] = mine
		}
		err = writeMemory(r.opts.Memory, &memory{of, now.wall, now.mono, now.boot, c.steps, dirs})
		c.unsaved = err != nil
		return &c, err // one of reading was noted when the pass began
	})
	if err != nil {
		report.Memory = strings.Trim(fmt.Sprintf("%s; %v", report.Memory, err), "; ")
	}
	if used != nil {
		r.clock = *used
	}
}

// readMemory returns a memory, which is empty if there is none. One of another boot counts as none.
// So does one that is damaged, from the future or writable by others, which is an error. It reads
// the clock after the file, which another process may write meanwhile.
func readMemory(path string, of origin, now func() reading) (m memory, err error) {
	f, err := openMemory(path)
	defer func() { _ = f.Close() }() // only read from, or nil
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if err := json.NewDecoder(f).Decode(&m); err != nil {
		return memory{}, fmt.Errorf("it is damaged: %w", err)
	}
	switch {
	case m.Of != of:
		return memory{}, nil
	case m.Mono > now().mono:
		return memory{}, errors.New("it is from the future")
	}
	return m, nil
}

// writeMemory replaces a memory that is locked.
func writeMemory(path string, m *memory) error {
	content, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(path+".new", content, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// recall merges what a memory has of steps, notices one since it was written, and takes the earlier
// of two sights; one from the future is of now. If all is true, it adds the pods of the memory. Else it drops those that neither the
// memory has nor a source of this reconciler lists, since other processes may have dropped them.
func (c *clock) recall(m *memory, dir string, now reading, all bool) {
	c.steps.bootedAt(m.Steps.BootedAt)
	c.steps.TrustedSince = later(c.steps.TrustedSince, m.Steps.TrustedSince)
	c.steps.Left = later(c.steps.Left, m.Steps.Left)
	c.steps.Highest = later(c.steps.Highest, m.Steps.Highest)
	c.steps.Back = max(c.steps.Back, m.Steps.Back)
	before := reading{wall: m.Wall, mono: m.Mono, boot: m.Boot}
	if m.Wall.IsZero() {
		before = now
	}
	_, stepped := c.steps.compare(before, now)
	c.unsaved = c.unsaved || stepped
	files := m.Dirs[dir].Files
	c.sawBefore(len(files), func(i int) sight[file] { return files[i] })
	finished := make(map[podID]time.Duration)
	for _, s := range m.Dirs[dir].Finished {
		if _, ok := c.finished[s.What]; ok || all {
			finished[s.What] = min(s.Seen, now.mono)
		}
	}
	for id, first := range c.finished {
		if seen, ok := finished[id]; first < seen || !ok && c.lists[id.Unproven] {
			finished[id] = first
		}
	}
	c.finished = finished
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}
