// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// A memory is what outlives a process in Options.Memory: first sights, and what was seen of steps
// of the clock. Any number of processes may write it, since a sight says only "this existed then",
// and a lost one only delays.
type memory struct {
	Of       origin         `json:"of"`
	Wall     time.Time      `json:"wall"` // a pair of readings, by which a step between two processes is seen
	Mono     time.Duration  `json:"mono"`
	Steps    steps          `json:"steps"`
	Files    []sight[file]  `json:"files"`
	Finished []sight[podID] `json:"finished"`
}

// An origin is what the times of a memory belong to. CLOCK_MONOTONIC begins anew with each boot,
// and has an offset in a time namespace.
type origin struct {
	BootID        string
	TimeNamespace string
	DataDir       string // its device and inode
}

// A sight is when something was first seen.
type sight[T comparable] struct {
	What T             `json:"what"`
	Seen time.Duration `json:"seen"`
}

// withMemory calls use with the file and the origin of the memory, and with a clock that is a copy
// of r's, which it replaces if use returns in time and without an error. The report says why there is
// no memory.
func (r *Reconciler) withMemory(ctx context.Context, report *Report, doing string, use func(path string, of origin, c *clock) error) {
	if r.opts.Memory == "" {
		return
	}
	mine := r.clock
	mine.files, mine.finished = maps.Clone(mine.files), maps.Clone(mine.finished)
	mine, err := onDisk(ctx, r, func(context.Context) (clock, error) {
		of, err := originOf(r.store.DataDir())
		if err == nil {
			err = use(r.opts.Memory, of, &mine)
		}
		return mine, err
	})
	if err != nil {
		report.Memory = fmt.Sprintf("%s %s: %v", doing, r.opts.Memory, err)
		return
	}
	r.clock = mine
}

// recall adds to the clock what the memory has.
func (r *Reconciler) recall(ctx context.Context, report *Report) {
	now := r.read()
	r.withMemory(ctx, report, "reading the memory", func(path string, of origin, c *clock) error {
		m, err := readMemory(path, of, now)
		if m != nil {
			c.recall(m, now)
			c.files, c.finished = earliest(c.files, m.Files, true), earliest(c.finished, m.Finished, true)
		}
		return err
	})
}

// remember replaces the memory with what the clock has seen, and with the steps and the earlier
// sights of other processes.
func (r *Reconciler) remember(ctx context.Context, report *Report) {
	now := r.read()
	if r.unsaved = false; r.opts.DryRun {
		return
	}
	r.withMemory(ctx, report, "writing the memory", func(path string, of origin, c *clock) error {
		return changeMemory(path, func() *memory {
			if m, _ := readMemory(path, of, now); m != nil { // else it was noted when it was read
				c.recall(m, now)
				c.files, c.finished = earliest(c.files, m.Files, false), earliest(c.finished, m.Finished, false)
			}
			return &memory{of, now.wall, now.mono, c.steps, sights(c.files), sights(c.finished)}
		})
	})
}

// recall merges what a memory has of steps, and notices one since it was written.
func (c *clock) recall(m *memory, now reading) {
	c.steps.bootedAt(m.Steps.BootedAt)
	c.steps.TrustedSince = later(c.steps.TrustedSince, m.Steps.TrustedSince)
	c.steps.Highest = later(c.steps.Highest, m.Steps.Highest)
	c.steps.Back = max(c.steps.Back, m.Steps.Back)
	c.steps.compare(reading{wall: m.Wall, mono: m.Mono}, now)
}

// earliest merges the sights of a memory into seen: the earlier of two counts. It adds others only
// if all is true.
func earliest[T comparable](seen map[T]time.Duration, sights []sight[T], all bool) map[T]time.Duration {
	if seen == nil {
		seen = make(map[T]time.Duration, len(sights))
	}
	for _, s := range sights {
		if first, ok := seen[s.What]; all && !ok || ok && s.Seen < first {
			seen[s.What] = s.Seen
		}
	}
	return seen
}

func sights[T comparable](seen map[T]time.Duration) (all []sight[T]) {
	for what, first := range seen {
		all = append(all, sight[T]{what, first})
	}
	return all
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
