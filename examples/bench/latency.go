// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// idle is the load of a node on which no pass runs.
const idle = "no pass"

// latencies are those of the plugin's ADD under one load.
type latencies struct {
	load   string
	size   int
	sorted []time.Duration
	passes int // that ended meanwhile
}

// at returns the quantile q, by the nearest rank.
func (l *latencies) at(q float64) time.Duration {
	if len(l.sorted) == 0 {
		return 0
	}
	return l.sorted[max(0, int(math.Ceil(q*float64(len(l.sorted))))-1)]
}

// timeADDs runs the plugin's ADD again and again, one at a time, beside the
// passes of one contestant after the other. Loads take turns, so that each is
// measured early and late.
func timeADDs(ctx context.Context, r *results, p place, size int, c *config, binary string) (err error) {
	d, err := makeNetDir(p.dir, scenario{Size: size, Leaked: tenth})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dataDir)) }()
	l := &loader{d: d, spare: filepath.Join(d.dataDir, "spare")}
	if err := l.moveLeaks(); err != nil {
		return err
	}
	adder := &adder{plugin: plugintest.Plugin{Binary: binary, DataDir: d.dataDir, Network: network, Ranges: ranges(false)}}
	loads := []string{idle, ours, walk}
	all := make([]latencies, len(loads))
	const turns = 5
	for range turns {
		for i, load := range loads {
			all[i].load, all[i].size = load, size
			until := time.Now().Add(c.addTime / turns)
			err := l.during(ctx, load, &all[i].passes, func(ctx context.Context) error {
				for n := 0; n < (c.adds+turns-1)/turns && (n == 0 || time.Now().Before(until)); n++ {
					took, err := adder.add(ctx)
					if err != nil {
						return err
					}
					all[i].sorted = append(all[i].sorted, took)
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s: %w", load, err)
			}
		}
	}
	for i := range all {
		slices.Sort(all[i].sorted)
	}
	r.adds = append(r.adds, all...)
	return nil
}

// An adder runs the real plugin.
type adder struct {
	plugin plugintest.Plugin
	n      int
}

// add times one ADD, and frees its address again off the clock.
func (a *adder) add(ctx context.Context) (time.Duration, error) {
	a.n++
	begun := time.Now()
	ips, err := a.plugin.Add(ctx, fmt.Sprintf("%064x", a.n), ifName)
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	for _, ip := range ips {
		if err := os.Remove(a.plugin.File(ip)); err != nil {
			return 0, fmt.Errorf("the address of the ADD: %w", err)
		}
	}
	return took, nil
}

// A loader keeps passes running.
type loader struct {
	d     *netDir
	spare string // holds a second name of each leaked file, beside the network's directory
}

// moveLeaks gives the leaked files a second name outside the directory.
func (l *loader) moveLeaks() error {
	if err := os.Mkdir(l.spare, 0o755); err != nil {
		return fmt.Errorf("making a directory for spare files: %w", err)
	}
	for _, r := range l.d.leaks {
		if err := os.Rename(r.path, filepath.Join(l.spare, r.ip.String())); err != nil {
			return fmt.Errorf("setting leaked files aside: %w", err)
		}
	}
	return nil
}

// relink puts the leaked files back into the directory, without the lock and as
// fast as can be: with a hard link each, as the next pass is to begin soon.
func (l *loader) relink() error {
	for _, r := range l.d.leaks {
		err := os.Link(filepath.Join(l.spare, r.ip.String()), r.path)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("putting a leaked file back: %w", err)
		}
	}
	return nil
}

// during does the work while passes of one contestant run back to back. It
// begins with the first of them and waits for the last.
func (l *loader) during(ctx context.Context, load string, passes *int, work func(context.Context) error) error {
	if err := l.relink(); err != nil {
		return err
	}
	if load == idle {
		return work(ctx)
	}
	do, err := l.pass(load)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel() // the work must not go on without its load
		for ctx.Err() == nil {
			if _, err := do(ctx); err != nil && ctx.Err() == nil {
				ended <- fmt.Errorf("a pass: %w", err)
				return
			}
			*passes++
			if err := l.relink(); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	err = work(ctx)
	cancel()
	if passErr := <-ended; passErr != nil {
		return passErr
	}
	return err
}

// pass is a contestant's. To walk, which knows of no minimum age, the addresses
// that ADD gives are told as live.
func (l *loader) pass(load string) (pass, error) {
	if load != walk {
		return newPass(load, l.d, "")
	}
	live := l.d.live()
	for ip := netip.MustParseAddr("10.67.0.1"); ip != netip.MustParseAddr("10.67.64.0"); ip = ip.Next() {
		live[ip] = true
	}
	return walkPass(l.d.dir, live), nil
}
