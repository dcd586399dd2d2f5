// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The contestants, by the names that they have in the tables.
const (
	floor     = "floor"
	walk      = "walk"
	del       = "DEL"
	delPlugin = "DEL, plugin"
	ours      = "ours"
)

// A pass releases the leaks of a directory once. It says how long it took and how
// long it held the lock; what else there is to measure, its caller measures.
type pass func(ctx context.Context) (timing, error)

type timing struct{ took, held, longest time.Duration }

// contestants returns those that take part in a scenario, in the order of the
// tables: with or without DEL.
func contestants(s scenario, dels bool) []string {
	out := []string{floor, walk, ours}
	if s.Leaked == none || !dels {
		return out
	}
	out = append(out, del)
	if s.Size <= 256 { // beyond that it takes minutes
		out = append(out, delPlugin)
	}
	return out
}

// newPass gets a contestant ready for passes over d. What it knows of the live
// pods it is told here, off the clock.
func newPass(name string, d *netDir, binary string) (pass, error) {
	switch name {
	case floor:
		return floorPass(d), nil
	case walk:
		return walkPass(d.dir, d.live()), nil
	case del:
		return delPass(d), nil
	case delPlugin:
		return pluginPass(d, binary), nil
	}
	return ourPass(d)
}

// floorPass is what the kernel alone takes: one read of the directory and one
// unlink a leak, with no lock and nothing checked.
func floorPass(d *netDir) pass {
	return func(context.Context) (timing, error) {
		begun := time.Now()
		f, err := os.Open(d.dir)
		if err != nil {
			return timing{}, err
		}
		_, err = f.Readdirnames(-1)
		if err := errors.Join(err, f.Close()); err != nil {
			return timing{}, err
		}
		for i := range d.leaks {
			if err := os.Remove(d.leaks[i].path); err != nil {
				return timing{}, err
			}
		}
		return timing{took: time.Since(begun)}, nil
	}
}

// walkPass does what collectors are often seen to do: under the plugin's lock it
// walks the directory, which takes the status of every file, and removes what is
// not among the live addresses.
func walkPass(dir string, live map[netip.Addr]bool) pass {
	return func(context.Context) (t timing, err error) {
		begun := time.Now()
		lock, err := disk.NewFileLock(dir)
		if err != nil {
			return timing{}, err
		}
		defer func() { err = errors.Join(err, lock.Close()) }()
		if err := lock.Lock(); err != nil {
			return timing{}, err
		}
		locked := time.Now()
		err = filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // freed meanwhile
				return nil
			}
			if err != nil || info.IsDir() {
				return err
			}
			if ip, err := netip.ParseAddr(info.Name()); err == nil && !live[ip] {
				return os.Remove(path)
			}
			return nil
		})
		err = errors.Join(err, lock.Unlock())
		now := time.Now()
		return timing{took: now.Sub(begun), held: now.Sub(locked), longest: now.Sub(locked)}, err
	}
}

// ourPass is this library's: it reads every owner, and asks a source that names
// the live containers. Indexing what that says is on the clock. Static has it at
// hand, so how long a real source takes is not.
func ourPass(d *netDir) (pass, error) {
	r, err := gc.New(hostlocal.New(d.dataDir), []string{network}, d.pods(), gc.Options{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (timing, error) {
		report, err := r.Reconcile(ctx)
		return timing{took: report.Duration, held: report.LockHeld, longest: report.LongestHold}, err
	}, nil
}

// delPass does for each leak what the plugin's DEL does, in this process:
// host-local's own ReleaseByID under its lock, once for each range, which reads
// every file there is. That is quadratic, so of many leaks some are released on
// the clock, spread evenly, with as many files around them as there would be.
func delPass(d *netDir) pass {
	return func(ctx context.Context) (t timing, err error) {
		store, err := disk.New(network, d.dataDir)
		if err != nil {
			return timing{}, err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		addresses := 1
		if d.Dual {
			addresses = 2
		}
		containers := len(d.leaks) / addresses
		onClock := min(containers, delsOnClock(d.Size))
		for i, next := 0, 0; i < containers; i++ {
			if err := ctx.Err(); err != nil {
				return t, err
			}
			theirs := d.leaks[i*addresses : (i+1)*addresses]
			if i < (2*next+1)*containers/(2*onClock) {
				for _, r := range theirs {
					if err := os.Remove(r.path); err != nil {
						return t, err
					}
				}
				continue
			}
			next++
			for range theirs {
				begun := time.Now()
				if err := releaseByID(store, theirs[0].id); err != nil {
					return t, err
				}
				held := time.Since(begun)
				t.took += held
				t.longest = max(t.longest, held)
			}
		}
		t.took = t.took * time.Duration(containers) / time.Duration(onClock)
		t.held = t.took
		return t, nil
	}
}

// delsOnClock is how many DELs are timed in a directory of that many reservations.
func delsOnClock(size int) int { return min(32, max(1, maxSize/size)) }

func releaseByID(store *disk.Store, id string) error {
	if err := store.Lock(); err != nil {
		return err
	}
	return errors.Join(store.ReleaseByID(id, ifName), store.Unlock())
}

// pluginPass runs the real plugin's DEL once for each leak, as a runtime would.
func pluginPass(d *netDir, binary string) pass {
	p := &plugintest.Plugin{Binary: binary, DataDir: d.dataDir, Network: network, Ranges: ranges(d.Dual)}
	return func(ctx context.Context) (timing, error) {
		begun := time.Now()
		last := -1
		for _, r := range d.leaks {
			if r.container == last { // a DEL takes both addresses of a container
				continue
			}
			last = r.container
			if err := p.Del(ctx, r.id, ifName); err != nil {
				return timing{}, err
			}
		}
		return timing{took: time.Since(begun)}, nil
	}
}
