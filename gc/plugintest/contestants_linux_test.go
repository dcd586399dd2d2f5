// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The contestants of the benchmarks. Each releases the leaks of a netDir:
//
//   - floor is what the kernel alone takes: one read of the directory and one
//     unlink a leak, with no lock and nothing checked;
//   - walk does what collectors are often seen to do: under the plugin's lock it
//     takes the status of every file, and removes what is not among the live addresses;
//   - DEL is host-local's own ReleaseByID under its lock, once for each leak, which
//     reads every file there is;
//   - ours is a pass of this library: it reads every owner, and asks a source that
//     names the live containers. How long a real source takes is not in it.
const floor, walk, del, ours = "floor", "walk", "DEL", "ours"

// A cost is that of one turn of a contestant.
type cost struct {
	wall, cpu     time.Duration // of the clock, and of all threads of this process in user and system mode
	held, longest time.Duration // for how long the lock was held: in all, and at once
	bytes, allocs float64       // on the heap
}

// measured returns what f cost but for the lock.
func measured(f func() error) (cost, error) {
	var before, after runtime.MemStats
	runtime.GC() // the garbage of what went before is not its own
	runtime.ReadMemStats(&before)
	cpu, begun := cpuTime(), time.Now()
	err := f()
	c := cost{wall: time.Since(begun), cpu: cpuTime() - cpu}
	runtime.ReadMemStats(&after)
	c.bytes, c.allocs = float64(after.TotalAlloc-before.TotalAlloc), float64(after.Mallocs-before.Mallocs)
	return c, err
}

// cpuTime is what this process has had of the CPUs so far (getrusage(2)).
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // without a figure nothing is measured
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// contestant returns what takes one turn of a contestant over d.
func contestant(tb testing.TB, name string, d *netDir) func(context.Context) (cost, error) {
	tb.Helper()
	switch name {
	case floor:
		return func(context.Context) (cost, error) { return measured(func() error { return floorPass(d) }) }
	case walk:
		live := d.live()
		return func(context.Context) (cost, error) { return walkPass(d.dir, live) }
	case del:
		return func(context.Context) (cost, error) { return delPass(d) }
	}
	r, err := gc.New(hostlocal.New(d.dataDir), []string{costNetwork}, d.pods(), gc.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return func(ctx context.Context) (cost, error) {
		var report gc.Report
		c, err := measured(func() (err error) { report, err = r.Reconcile(ctx); return err })
		c.held, c.longest = report.LockHeld, report.LongestHold
		return c, err
	}
}

func floorPass(d *netDir) error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	_, err = f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, f := range d.leaks {
		if err := os.Remove(f.path); err != nil {
			return err
		}
	}
	return nil
}

func walkPass(dir string, live map[netip.Addr]bool) (c cost, err error) {
	var held time.Duration
	c, err = measured(func() (err error) {
		lock, err := disk.NewFileLock(dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lock.Close()) }()
		if err := lock.Lock(); err != nil {
			return err
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
		held = time.Since(locked)
		return err
	})
	c.held, c.longest = held, held
	return c, err
}

// delsMeasured is how many DELs of a turn are measured. All of them would take
// minutes in a large directory.
const delsMeasured = 8

// delPass does what DELs do for all leaks. Of many it measures some, when half of
// the others are gone, and multiplies.
func delPass(d *netDir) (cost, error) {
	n := min(delsMeasured, len(d.leaks))
	first := (len(d.leaks) - n) / 2
	if err := removeAll(d.leaks[:first]); err != nil {
		return cost{}, err
	}
	store, err := disk.New(costNetwork, d.dataDir)
	if err != nil {
		return cost{}, err
	}
	defer store.Close()
	var longest time.Duration
	c, err := measured(func() error {
		for _, f := range d.leaks[first : first+n] {
			begun := time.Now()
			if err := store.Lock(); err != nil {
				return err
			}
			if err := errors.Join(store.ReleaseByID(f.id, "eth0"), store.Unlock()); err != nil {
				return err
			}
			longest = max(longest, time.Since(begun))
		}
		return nil
	})
	times := float64(len(d.leaks)) / float64(n)
	c.wall, c.cpu = time.Duration(float64(c.wall)*times), time.Duration(float64(c.cpu)*times)
	c.bytes, c.allocs = c.bytes*times, c.allocs*times
	c.held, c.longest = c.wall, longest
	return c, errors.Join(err, removeAll(d.leaks[first+n:]))
}

func removeAll(files []costFile) error {
	for _, f := range files {
		if err := os.Remove(f.path); err != nil {
			return err
		}
	}
	return nil
}
