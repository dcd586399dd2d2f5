// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A memory is what outlives a process in Options.Memory: first sights, and what was seen of steps
// of the clock. Any number of processes may write it, since a sight says only "this existed then",
// and a lost one only delays.
type memory struct {
	Of    origin            `json:"of"`
	Wall  time.Time         `json:"wall"` // a pair of readings, by which a step between two processes is seen
	Mono  time.Duration     `json:"mono"`
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

// withMemory calls use with the origin of the memory, with the name of the data directory in it,
// and with a clock that is a copy of r's, which it replaces if use returns in time and without an
// error. The report says why there is no memory.
func (r *Reconciler) withMemory(ctx context.Context, report *Report, doing string, use func(of origin, dir string, c *clock) error) {
	if r.opts.Memory == "" {
		return
	}
	mine := r.clock
	mine.files, mine.finished = slices.Clone(mine.files), maps.Clone(mine.finished)
	used, err := onDisk(ctx, &r.onMemory, &r.opts, func(context.Context) (*clock, error) {
		of, dir, err := originOf(r.store.DataDir())
		if err == nil {
			err = use(of, dir, &mine)
		}
		return &mine, err
	})
	if err != nil {
		report.Memory = fmt.Sprintf("%s %s: %v", doing, r.opts.Memory, err)
		return
	}
	r.clock = *used
}

// recall adds to the clock what the memory has.
func (r *Reconciler) recall(ctx context.Context, report *Report) {
	r.withMemory(ctx, report, "reading the memory", func(of origin, dir string, c *clock) error {
		m, err := readMemory(r.opts.Memory, of, r.now)
		if m != nil {
			c.recall(m, r.now())
			c.sawBefore(m.Dirs[dir].Files)
			c.finished = earliest(c.finished, m.Dirs[dir].Finished, true)
		}
		return err
	})
}

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
	if r.opts.DryRun {
		return
	}
	r.withMemory(ctx, report, "writing the memory", func(of origin, dir string, c *clock) error {
		return changeMemory(r.opts.Memory, func() *memory {
			m, _ := readMemory(r.opts.Memory, of, r.now) // an error was noted when it was read
			now := r.now()
			if m == nil {
				m = &memory{Of: of, Wall: now.wall, Mono: now.mono}
			}
			c.recall(m, now)
			c.unsaved = false
			c.sawBefore(m.Dirs[dir].Files)
			c.finished = earliest(c.finished, m.Dirs[dir].Finished, false)
			mine := sights{Files: c.files}
			for pod, first := range c.finished {
				mine.Finished = append(mine.Finished, sight[podID]{pod, first})
			}
			all := map[string]sights{}
			maps.Copy(all, m.Dirs)
			all[dir] = mine
			return &memory{of, now.wall, now.mono, c.steps, all}
		})
	})
}

// recall merges what a memory has of steps, and notices one since it was written.
func (c *clock) recall(m *memory, now reading) {
	c.steps.bootedAt(m.Steps.BootedAt)
	c.steps.TrustedSince = later(c.steps.TrustedSince, m.Steps.TrustedSince)
	c.steps.Left = later(c.steps.Left, m.Steps.Left)
	c.steps.Highest = later(c.steps.Highest, m.Steps.Highest)
	c.steps.Back = max(c.steps.Back, m.Steps.Back)
	_, stepped := c.steps.compare(reading{wall: m.Wall, mono: m.Mono}, now)
	c.unsaved = c.unsaved || stepped
}

// earliest merges the sights of a memory into seen: the earlier of two counts. It adds others only
// if all is true.
func earliest(seen map[podID]time.Duration, sights []sight[podID], all bool) map[podID]time.Duration {
	if seen == nil {
		seen = make(map[podID]time.Duration, len(sights))
	}
	for _, s := range sights {
		if first, ok := seen[s.What]; all && !ok || ok && s.Seen < first {
			seen[s.What] = s.Seen
		}
	}
	return seen
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
