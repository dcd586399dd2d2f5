// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// BenchmarkPass compares passes with walk, each in the same round, because a machine that is slow for
// a while is slow for both. In a container with a CPU limit it shows the longest hold of the lock
// there: the kernel may stop a process that holds it. It reports medians, and the worst hold.
//
//	go test ./gc/plugintest -run '^$' -bench Pass -benchtime 7x -timeout 1h
func BenchmarkPass(b *testing.B) {
	for _, size := range map[bool][]int{true: {64}, false: {256, 4096, 65536}}[testing.Short()] {
		for _, percent := range []int{0, 10, 100} {
			b.Run(fmt.Sprintf("reservations=%d/leaked=%dpct", size, percent), func(b *testing.B) {
				d := newNetDir(b, size, percent)
				settle := func() { <-time.After(3100 * time.Millisecond) } // of files that were made or put back: nothing but time settles them
				b.Run("floor", func(b *testing.B) { d.compare(b, d.floor, nil) })
				b.Run("plain", func(b *testing.B) { d.compare(b, d.plain, nil) })
				b.Run("first", func(b *testing.B) { d.compare(b, d.first, settle) })
				if settle(); percent == 0 {
					b.Run("later", func(b *testing.B) { d.compare(b, d.later, nil) })
					b.Run("later-10-changed", func(b *testing.B) { d.compare(b, d.later, func() { d.change(b, 10) }) })
				}
			})
		}
	}
}

// compare reports the cost of a pass, before which something is to be done, beside that of walk.
func (d *netDir) compare(b *testing.B, of pass, before func()) {
	b.Helper()
	figures := make(map[string][]float64)
	add := func(name string, value float64) { figures[name] = append(figures[name], value) }
	for b.Loop() {
		walk := d.cost(b, d.walk)
		if before != nil {
			before()
		}
		c, size := d.cost(b, of), float64(len(d.live)+len(d.leaked))
		add("time/walk", c.time/walk.time)
		add("CPU/walk", c.cpu/walk.cpu)
		add("held/walk", c.held/walk.held)
		add("longest-hold-ms", 1000*c.longest)
		add("walk-ms", 1000*walk.time)
		add("B/reservation", c.bytes/size)
		add("allocs/reservation", c.allocs/size)
	}
	b.ReportMetric(0, "ns/op") // the sum of both means nothing
	for name, all := range figures {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name)
		if name == "longest-hold-ms" {
			b.ReportMetric(all[len(all)-1], "worst-hold-ms")
		}
	}
}

// A netDir is a network's directory, some of whose reservations have leaked.
type netDir struct {
	p      *plugintest.Plugin // only for its paths
	spare  string             // a directory with a second name of each leaked file
	leaked map[string]bool    // by file name
	live   map[string]bool    // by container ID
	make   func() *gc.Reconciler
	old    *gc.Reconciler // for pass after pass
}

// newNetDir makes reservations that are an hour old, of which so many percent have leaked.
func newNetDir(b *testing.B, size, percent int) *netDir {
	b.Helper()
	p := &plugintest.Plugin{DataDir: b.TempDir(), Network: "podnet"}
	d := &netDir{p: p, spare: b.TempDir(), leaked: make(map[string]bool), live: make(map[string]bool)}
	errs := []error{os.Mkdir(p.Dir(), 0o755)}
	ip, made, pods := netip.MustParseAddr("10.64.0.1"), time.Now().Add(-time.Hour), podsource.Static{someone}
	for i := range size {
		errs = append(errs, os.WriteFile(p.File(ip), []byte(containerID(i)+"\r\neth0"), 0o600), os.Chtimes(p.File(ip), made, made))
		if i*percent/100 < (i+1)*percent/100 {
			d.leaked[name(ip)] = true
			errs = append(errs, os.Link(p.File(ip), filepath.Join(d.spare, name(ip))))
		} else {
			d.live[containerID(i)] = true
			pods = append(pods, podsource.Pod{ContainerIDs: []string{containerID(i)}})
		}
		ip = ip.Next()
	}
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	d.make = func() *gc.Reconciler { return reconcilerOf(b, p, pods, gc.Options{}) }
	d.old = d.make()
	return d
}

// change moves the change time of files.
func (d *netDir) change(b *testing.B, n int) {
	b.Helper()
	for ip := netip.MustParseAddr("10.64.0.1"); n > 0; n, ip = n-1, ip.Next() {
		if err := os.Chmod(d.p.File(ip), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// leakAgain puts the leaked files back. It fails if one was not released.
func (d *netDir) leakAgain() (err error) {
	for name := range d.leaked {
		err = errors.Join(err, os.Link(filepath.Join(d.spare, name), filepath.Join(d.p.Dir(), name)))
	}
	return err
}

// A pass releases all leaks, and returns how long it held the lock in all and at once.
type pass func(context.Context) (held, longest time.Duration, err error)

// first is the first pass of a process. Its source takes no time.
func (d *netDir) first(ctx context.Context) (held, longest time.Duration, err error) {
	report, err := d.make().Reconcile(ctx)
	return report.LockHeld, report.LongestHold, err
}

// later is a pass of a process that has made one, but for the first.
func (d *netDir) later(ctx context.Context) (held, longest time.Duration, err error) {
	report, err := d.old.Reconcile(ctx)
	return report.LockHeld, report.LongestHold, err
}

// locked calls a function under the plugin's lock.
func (d *netDir) locked(do func() error) (held, longest time.Duration, err error) {
	lock, err := disk.NewFileLock(d.p.Dir())
	if err != nil {
		return 0, 0, err
	}
	err = lock.Lock()
	locked := time.Now()
	err = errors.Join(err, do(), lock.Unlock())
	held = time.Since(locked)
	return held, held, errors.Join(err, lock.Close())
}

// walk does what many collectors do: under the plugin's lock it gets the status of every file,
// looks its address up in a list, and removes the file if it has leaked.
func (d *netDir) walk(context.Context) (held, longest time.Duration, err error) {
	return d.locked(func() error {
		return filepath.Walk(d.p.Dir(), func(path string, info fs.FileInfo, err error) error {
			if err == nil && d.leaked[info.Name()] {
				return os.Remove(path)
			}
			return err
		})
	})
}

// floor makes the system calls that any pass must make: it gets the status of every file, and
// removes those that have leaked under the lock.
func (d *netDir) floor(context.Context) (held, longest time.Duration, err error) {
	f, err := os.Open(d.p.Dir())
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }() // only read from
	names, err := f.Readdirnames(-1)
	var st unix.Stat_t
	for _, name := range names {
		err = cmp.Or(err, unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW))
	}
	if len(d.leaked) == 0 {
		return 0, 0, err
	}
	return d.locked(func() error {
		for name := range d.leaked {
			err = cmp.Or(err, unix.Unlinkat(int(f.Fd()), name, 0))
		}
		return err
	})
}

// plain is a collector as an agent may write it: it reads all owners, and compares those that are not
// live once more under the lock before it removes them.
func (d *netDir) plain(context.Context) (held, longest time.Duration, err error) {
	entries, err := os.ReadDir(d.p.Dir())
	leaks := make(map[string]string) // by path
	for _, e := range entries {
		path := filepath.Join(d.p.Dir(), e.Name())
		if net.ParseIP(e.Name()) == nil {
			continue
		}
		content, e := os.ReadFile(path)
		err = cmp.Or(err, e)
		if id, _, _ := strings.Cut(string(content), "\r\n"); !d.live[id] {
			leaks[path] = string(content)
		}
	}
	if err != nil || len(leaks) == 0 {
		return 0, 0, err
	}
	return d.locked(func() error {
		for path, was := range leaks {
			content, e := os.ReadFile(path)
			if err = cmp.Or(err, e); string(content) == was {
				err = cmp.Or(err, os.Remove(path))
			}
		}
		return err
	})
}

// A cost is that of one pass. Times are in seconds.
type cost struct{ time, cpu, held, longest, bytes, allocs float64 }

func (d *netDir) cost(b *testing.B, run pass) cost {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC() // so that it does not pay for earlier garbage
	runtime.ReadMemStats(&before)
	begun, cpu := time.Now(), cpuTime(b)
	held, longest, err := run(b.Context())
	took, cpu := time.Since(begun), cpuTime(b)-cpu
	runtime.ReadMemStats(&after)
	if err := errors.Join(err, d.leakAgain()); err != nil {
		b.Fatal(err)
	}
	return cost{took.Seconds(), cpu, held.Seconds(), longest.Seconds(),
		float64(after.TotalAlloc - before.TotalAlloc), float64(after.Mallocs - before.Mallocs)}
}

// cpuTime returns the CPU time of this process in seconds.
func cpuTime(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
