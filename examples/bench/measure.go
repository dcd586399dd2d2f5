// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// A figure is one of the things that are measured of a pass.
type figure int

const (
	seconds figure = iota // from the call to its return
	cpu                   // seconds of this process, user and system
	held                  // seconds for which the lock was held, in all
	longest               // ... and at most at once
	memory                // allocated, a reservation
	allocs                // allocations, a reservation
	figures
)

// A sample is what was measured of one pass. NaN is what can't be measured.
type sample [figures]float64

// measure runs all contestants in one scenario. In each round every one has its
// turn on the same directory, each round another one first, and the directory is
// made whole again before each turn.
func measure(ctx context.Context, r *results, p place, s scenario, names []string, binary string) (err error) {
	d, err := makeNetDir(p.dir, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dataDir)) }()
	passes := make([]pass, len(names))
	for i, name := range names {
		if passes[i], err = newPass(name, d, binary); err != nil {
			return err
		}
	}
	for round := range r.config.runs {
		for turn := range names {
			i := (round + turn) % len(names)
			if err := ctx.Err(); err != nil {
				return err
			}
			if round+turn > 0 {
				if err := d.refill(); err != nil {
					return err
				}
			}
			sample, err := take(ctx, d, names[i], passes[i])
			if err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
			if err := d.check(); err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
			r.add(key{p.name, s, names[i]}, sample)
		}
	}
	return nil
}

// take measures one pass. The garbage of what went before is not its own.
func take(ctx context.Context, d *netDir, name string, do pass) (s sample, err error) {
	lock := filepath.Join(d.dir, "lock")
	if err := os.Remove(lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("making the lock's file anew: %w", err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cpuBefore := cpuSeconds()
	t, err := do(ctx)
	cpuAfter := cpuSeconds()
	runtime.ReadMemStats(&after)
	if err != nil {
		return s, err
	}
	s = sample{
		seconds: t.took.Seconds(), cpu: cpuAfter - cpuBefore, held: t.held.Seconds(), longest: t.longest.Seconds(),
		memory: float64(after.TotalAlloc-before.TotalAlloc) / float64(d.Size),
		allocs: float64(after.Mallocs-before.Mallocs) / float64(d.Size),
	}
	switch unknown := math.NaN(); {
	case name == delPlugin: // what happens in another process can't be seen from here
		s[cpu], s[held], s[longest], s[memory], s[allocs] = unknown, unknown, unknown, unknown, unknown
	case name == del && delsOnClock(d.Size) < len(d.leaks): // what was done off the clock is among these
		s[cpu], s[memory], s[allocs] = unknown, unknown, unknown
	case d.Leaked == none && name == ours:
		if _, err := os.Lstat(lock); err == nil {
			return s, errors.New("took the lock where nothing was leaked")
		}
	}
	return s, nil
}

// A key says of what a sample is.
type key struct {
	place string
	scenario
	who string
}

// results are all that was measured.
type results struct {
	config   *config
	places   []string
	order    []key
	samples  map[key][]sample // the nth of each contestant are from the same round
	calls    []calls
	adds     []latencies
	remarks  []string
	took     time.Duration
	machine  string
	load     [2]string // load averages before and after; empty where unknown
	notCalls string    // why there are no system calls
}

func newResults(c *config) *results {
	return &results{config: c, samples: make(map[key][]sample), machine: machine(), load: [2]string{load()}}
}

func (r *results) remark(format string, args ...any) {
	r.remarks = append(r.remarks, fmt.Sprintf(format, args...))
}

func (r *results) add(k key, s sample) {
	if _, ok := r.samples[k]; !ok {
		r.order = append(r.order, k)
	}
	if !slices.Contains(r.places, k.place) {
		r.places = append(r.places, k.place)
	}
	r.samples[k] = append(r.samples[k], s)
}

// median returns the median of a figure over all runs, or NaN.
func (r *results) median(k key, f figure) float64 {
	var all []float64
	for _, s := range r.samples[k] {
		all = append(all, s[f])
	}
	return median(all)
}

// ratio returns the median of the ratios of k to another contestant in the same
// round: what slows the machine down for a while slows both.
func (r *results) ratio(k key, rival string, f figure) float64 {
	other := k
	other.who = rival
	var all []float64
	for i, s := range r.samples[k] {
		if i < len(r.samples[other]) {
			all = append(all, s[f]/r.samples[other][i][f])
		}
	}
	return median(all)
}

// median is NaN of nothing, and where anything is NaN.
func median(all []float64) float64 {
	if len(all) == 0 || slices.ContainsFunc(all, math.IsNaN) {
		return math.NaN()
	}
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
