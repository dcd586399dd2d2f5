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

// The collectors that the benchmarks compare. Each releases the leaks of a netDir:
//
//   - floor is the least that the kernel needs: it reads the directory once and unlinks
//     each leak, without a lock and without checks;
//   - walk does what many collectors do: under the plugin's lock it gets the status of
//     every file, and removes the files that are not in a list of live addresses;
//   - DEL is host-local's own ReleaseByID under its lock, once for each leak. Each call
//     reads all files;
//   - ours is a pass of this library: it reads every owner, and asks a source that
//     names the live containers. The source takes no time, unlike a real one.
const floor, walk, del, ours = "floor", "walk", "DEL", "ours"

// A cost is that of one run of a collector.
type cost struct {
	wall, cpu     time.Duration // elapsed time; CPU time of all threads of this process, user and system
	held, longest time.Duration // how long the lock was held: in total, and at once
	bytes, allocs float64       // on the heap
}

// measured returns the cost of f, without the times of the lock.
func measured(f func() error) (cost, error) {
	var before, after runtime.MemStats
	runtime.GC() // so that f does not pay for earlier garbage
	runtime.ReadMemStats(&before)
	cpu, begun := cpuTime(), time.Now()
	err := f()
	c := cost{wall: time.Since(begun), cpu: cpuTime() - cpu}
	runtime.ReadMemStats(&after)
	c.bytes, c.allocs = float64(after.TotalAlloc-before.TotalAlloc), float64(after.Mallocs-before.Mallocs)
	return c, err
}

// cpuTime returns the CPU time that this process has used (getrusage(2)).
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // without it no cost can be measured
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// collectorOf returns the function that runs a collector once over d.
func collectorOf(tb testing.TB, name string, d *netDir) func(context.Context) (cost, error) {
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
			if errors.Is(err, fs.ErrNotExist) { // released since the directory was read
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

// delsMeasured is the number of DELs that a run measures. All of them would take minutes in
// a large directory.
const delsMeasured = 8

// delPass releases all leaks as DELs do. It measures delsMeasured of them, after half of the
// others are gone, and extrapolates from these.
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
