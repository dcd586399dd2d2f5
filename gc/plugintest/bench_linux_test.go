// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// BenchmarkPass compares a pass with walk, and the plugin's ADD beside passes of each, back to
// back, with one beside none. In a container with a CPU limit it shows the longest hold of
// the lock there: the kernel may stop a process that holds it.
//
//	go test ./gc/plugintest -run '^$' -bench Pass -benchtime 5x -timeout 1h
//
// It reports medians, and the worst hold. Each ratio is of one round, because a machine that is
// slow for a while is slow for all contestants.
func BenchmarkPass(b *testing.B) {
	for _, size := range map[bool][]int{true: {64}, false: {256, 4096, 65536}}[testing.Short()] {
		for _, percent := range []int{0, 10, 100} {
			b.Run(fmt.Sprintf("reservations=%d/leaked=%dpct", size, percent), func(b *testing.B) {
				d := newNetDir(b, size, percent)
				figures := make(map[string][]float64)
				add := func(name string, value float64) { figures[name] = append(figures[name], value) }
				for b.Loop() {
					our, walk := d.cost(b, d.ours), d.cost(b, d.walk)
					add("time/walk", our.time/walk.time)
					add("held/walk", our.held/walk.held)
					add("longest-hold-ms", 1000*our.longest)
					add("walk-hold-ms", 1000*walk.longest)
					add("B/reservation", our.bytes/float64(size))
					add("allocs/reservation", our.allocs/float64(size))
					alone := d.adds(b, nil)
					add("ADD-ms", 1000*alone)
					add("ADD-beside-ours/alone", d.adds(b, d.ours)/alone)
					add("ADD-beside-walk/alone", d.adds(b, d.walk)/alone)
				}
				b.ReportMetric(0, "ns/op") // the sum of all contestants means nothing
				for name, all := range figures {
					slices.Sort(all)
					b.ReportMetric(all[len(all)/2], name)
					if name == "longest-hold-ms" {
						b.ReportMetric(all[len(all)-1], "worst-hold-ms")
					}
				}
			})
		}
	}
}

// A netDir is a network's directory, some of whose reservations have leaked.
type netDir struct {
	p          *plugintest.Plugin // whose ADDs get none of the leaked addresses
	spare      string             // a directory with a second name of each leaked file
	leaked     map[string]bool
	reconciler *gc.Reconciler
}

// newNetDir makes reservations that are an hour old, of which so many percent have leaked.
func newNetDir(b *testing.B, size, percent int) *netDir {
	b.Helper()
	p := &plugintest.Plugin{Binary: plugintest.Build(b), DataDir: b.TempDir(), Network: "podnet",
		Ranges: []plugintest.Range{{Subnet: "10.64.0.0/14", Start: "10.67.0.1"}}}
	d := &netDir{p: p, spare: b.TempDir(), leaked: make(map[string]bool)}
	errs := []error{os.Mkdir(p.Dir(), 0o755)}
	ip, made, pods := netip.MustParseAddr("10.64.0.1"), time.Now().Add(-time.Hour), podsource.Static{someone}
	for i := range size {
		errs = append(errs, os.WriteFile(p.File(ip), []byte(containerID(i)+"\r\neth0"), 0o600), os.Chtimes(p.File(ip), made, made))
		if i*percent/100 < (i+1)*percent/100 {
			d.leaked[name(ip)] = true
			errs = append(errs, os.Link(p.File(ip), filepath.Join(d.spare, name(ip))))
		} else {
			pods = append(pods, podsource.Pod{ContainerIDs: []string{containerID(i)}})
		}
		ip = ip.Next()
	}
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	d.reconciler = reconcilerOf(b, p, pods, gc.Options{})
	return d
}

// leakAgain puts the leaked files back. It fails if one was not released.
func (d *netDir) leakAgain() (err error) {
	for name := range d.leaked {
		err = errors.Join(err, os.Link(filepath.Join(d.spare, name), filepath.Join(d.p.Dir(), name)))
	}
	return err
}

// A pass releases all leaks, and returns how long it held the lock in all and at once.
type pass func(ctx context.Context) (held, longest time.Duration, err error)

// ours is a pass of this library. Its source takes no time.
func (d *netDir) ours(ctx context.Context) (held, longest time.Duration, err error) {
	report, err := d.reconciler.Reconcile(ctx)
	return report.LockHeld, report.LongestHold, err
}

// walk does what many collectors do: under the plugin's lock it gets the status of every file,
// looks its address up in a list, and removes the file if it has leaked.
func (d *netDir) walk(context.Context) (held, longest time.Duration, err error) {
	lock, err := disk.NewFileLock(d.p.Dir())
	if err != nil {
		return 0, 0, err
	}
	err = lock.Lock()
	locked := time.Now()
	err = errors.Join(err, filepath.Walk(d.p.Dir(), func(path string, info fs.FileInfo, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // the reservation of an ADD, which adds has removed
			return nil
		case err == nil && d.leaked[info.Name()]:
			return os.Remove(path)
		}
		return err
	}), lock.Unlock())
	held = time.Since(locked)
	return held, held, errors.Join(err, lock.Close())
}

// A cost is that of one pass. Times are in seconds.
type cost struct{ time, held, longest, bytes, allocs float64 }

func (d *netDir) cost(b *testing.B, run pass) cost {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC() // so that it does not pay for earlier garbage
	runtime.ReadMemStats(&before)
	begun := time.Now()
	held, longest, err := run(b.Context())
	took := time.Since(begun)
	runtime.ReadMemStats(&after)
	if err := errors.Join(err, d.leakAgain()); err != nil {
		b.Fatal(err)
	}
	return cost{took.Seconds(), held.Seconds(), longest.Seconds(),
		float64(after.TotalAlloc - before.TotalAlloc), float64(after.Mallocs - before.Mallocs)}
}

// adds returns the median time of an ADD in seconds, while passes run back to back, if any.
func (d *netDir) adds(b *testing.B, beside pass) float64 {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() {
		var err error
		for beside != nil && err == nil && ctx.Err() == nil {
			_, _, err = beside(b.Context())
			err = errors.Join(err, d.leakAgain())
		}
		ended <- err
	}()
	var took []float64
	var errs []error
	for range 5 {
		begun := time.Now()
		ips, err := d.p.Add(b.Context(), "new", "eth0")
		took, errs = append(took, time.Since(begun).Seconds()), append(errs, err)
		for _, ip := range ips {
			errs = append(errs, os.Remove(d.p.File(ip)))
		}
	}
	stop()
	if err := errors.Join(append(errs, <-ended)...); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	return took[len(took)/2]
}
