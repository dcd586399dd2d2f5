// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A memory is what outlives a process in Options.Memory: first sights, and what was seen of steps
// of the clock. Any number of processes may write it, since a sight says only "this existed then",
// and a lost one only delays. It has times by their names: first sights by the data directory and
// what was seen, on the monotonic clock; those of the wall clock, since 1970.
//
// The first line of the file has its version, and what its times belong to: CLOCK_MONOTONIC begins
// anew with each boot, and has an offset in a time namespace. The last one has the number of those in
// between, each of which is a number of nanoseconds and its name.
type memory map[string]time.Duration

const memoryVersion = "hostlocal-gc memory 1 "

// useMemory adds to the clock what the memory has. If write is true, it then replaces the memory with
// what the clock has seen, and with the steps and the earlier sights of other processes. If it can't,
// or not in time, the clock stays as it is, and the report says why.
func (r *Reconciler) useMemory(ctx context.Context, report *Report, write bool) {
	if r.opts.Memory == "" || write && r.opts.DryRun {
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
		c.recall(m, dir, now, !write)
		if write {
			c.save(m, dir, now)
			failed := writeMemory(r.opts.Memory, of, m)
			c.unsaved = failed != nil
			err = cmp.Or(failed, err)
		}
		return &c, err
	})
	if err != nil && !strings.Contains(report.Memory, err.Error()) {
		report.Memory = strings.Trim(fmt.Sprintf("%s; %v", report.Memory, err), "; ")
	}
	if used != nil {
		r.clock = *used
	}
}

// readMemory returns a memory, which is empty if there is none. One of another boot counts as none.
// So does one that is damaged, from the future or writable by others, which is an error. It reads
// the clock after the file, which another process may write meanwhile.
func readMemory(path, of string, now func() reading) (memory, error) {
	content, err := readPrivate(path)
	first, lines, _ := strings.Cut(content, "\n")
	m, whole := make(memory), strings.HasPrefix(first, memoryVersion)
	for line := range strings.SplitSeq(lines, "\n") {
		text, name, _ := strings.Cut(line, " ")
		ns, err := strconv.ParseInt(text, 10, 64)
		m[name], whole = time.Duration(ns), whole && err == nil
	}
	whole = whole && strings.HasSuffix(content, fmt.Sprintf("\n%d end", len(m)-1))
	delete(m, "end")
	switch {
	case errors.Is(err, fs.ErrNotExist), whole && first != of:
		return memory{}, nil
	case err != nil:
		return memory{}, err
	case !whole:
		return memory{}, errors.New("it is damaged, or of another version")
	case m["mono"] > now().mono:
		return memory{}, errors.New("it is from the future")
	}
	return m, nil
}

// writeMemory replaces a memory that is locked.
func writeMemory(path, of string, m memory) error {
	text := []byte(of)
	for name, ns := range m {
		text = fmt.Appendf(text, "\n%d %s", ns, name)
	}
	err := os.WriteFile(path+".new", fmt.Appendf(text, "\n%d end", len(m)), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// save replaces what the memory has of steps and of one data directory. A time that is zero becomes the earliest one.
func (c *clock) save(m memory, dir string, now reading) {
	since := func(t time.Time) time.Duration { return t.Sub(time.Unix(0, 0)) }
	m["wall"], m["mono"], m["boot"] = since(now.wall), now.mono, now.boot // by which a step between two processes is seen
	m["booted"], m["trusted"], m["left"] = since(c.steps.BootedAt), since(c.steps.TrustedSince), since(c.steps.Left)
	m["highest"], m["back"] = since(c.steps.Highest), c.steps.Back
	if !c.listed {
		return // the memory may have files that only another process has seen
	}
	for name := range m {
		if strings.HasPrefix(name, dir) {
			delete(m, name)
		}
	}
	for _, f := range c.files {
		m[dir+fileOf(f.Reservation).String()] = f.seen
	}
	for pod, first := range c.finished {
		m[dir+string(pod)] = first
	}
}

// recall merges what a memory has of steps, notices one since it was written, and takes the earlier
// of two sights; one from the future is of now. If all is true, it adds the pods of the memory. Else
// it drops those that neither the memory has nor a source of this reconciler lists, since other
// processes may have dropped them.
func (c *clock) recall(m memory, dir string, now reading, all bool) {
	before := now
	if len(m) > 0 {
		wall := func(name string) time.Time { return time.Unix(0, int64(m[name])) }
		c.steps.bootedAt(wall("booted"))
		c.steps.TrustedSince = later(c.steps.TrustedSince, wall("trusted"))
		c.steps.Left = later(c.steps.Left, wall("left"))
		c.steps.Highest = later(c.steps.Highest, wall("highest"))
		c.steps.Back = max(c.steps.Back, m["back"])
		before = reading{wall: wall("wall"), mono: m["mono"], boot: m["boot"]}
	}
	_, stepped := c.steps.compare(before, now)
	c.unsaved = c.unsaved || stepped
	for i := range c.files {
		f := &c.files[i]
		if seen, ok := m[dir+fileOf(f.Reservation).String()]; ok {
			f.seen = min(f.seen, seen)
		}
	}
	finished := make(map[podID]time.Duration)
	for name, seen := range m {
		if pod, here := strings.CutPrefix(name, dir); all && here && !strings.HasPrefix(pod, "file ") {
			finished[podID(strings.Clone(pod))] = min(seen, now.mono) // a part of the memory would keep all of it
		}
	}
	for pod, first := range c.finished {
		if seen, ok := m[dir+string(pod)]; ok {
			finished[pod] = min(first, seen)
		} else if c.lists[pod.unproven()] {
			finished[pod] = first
		}
	}
	c.finished = finished
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}
