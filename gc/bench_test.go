// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// BenchmarkPass says what a whole pass costs: time, and bytes and allocations
// for each reservation. Every tenth reservation leaked, or none did. Beside the
// passes two others do the same work with less care:
//
//   - floor reads the directory once and removes the leaks, checking nothing;
//   - walk does what collectors are often seen to do: it walks the directory, takes
//     every file's status, and removes while it holds the plugin's lock.
func BenchmarkPass(b *testing.B) {
	for _, size := range []int{256, 65536} {
		for _, leakEvery := range []int{0, 10} {
			for _, by := range []string{"floor", "walk", "address", "container"} {
				name := fmt.Sprintf("reservations=%d/leaked=none/by=%s", size, by)
				if leakEvery > 0 {
					name = fmt.Sprintf("reservations=%d/leaked=1of%d/by=%s", size, leakEvery, by)
				}
				b.Run(name, func(b *testing.B) { benchmarkPass(b, size, leakEvery, by) })
			}
		}
	}
}

// careless are passes with less care. live holds the addresses in use.
var careless = map[string]func(dir string, live map[netip.Addr]bool) error{
	"floor": func(dir string, live map[netip.Addr]bool) error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		names, err := d.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range names {
			if ip, err := netip.ParseAddr(name); err == nil && !live[ip] {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
		}
		return nil
	},
	"walk": func(dir string, live map[netip.Addr]bool) error {
		lock, err := disk.NewFileLock(dir)
		if err != nil {
			return err
		}
		defer lock.Close()
		if err := lock.Lock(); err != nil {
			return err
		}
		return filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return err
			}
			if ip, err := netip.ParseAddr(info.Name()); err == nil && !live[ip] {
				return os.Remove(path)
			}
			return nil
		})
	},
}

func benchmarkPass(b *testing.B, size, leakEvery int, by string) {
	n := newNode(b)
	ip := netip.MustParseAddr("10.64.0.1")
	var pods podsource.Static
	var leaks []string
	live := make(map[netip.Addr]bool)
	var held, longest time.Duration
	made := time.Now().Add(-old)
	write := func(name string) {
		path := filepath.Join(n.dataDir, network1, name)
		if err := os.WriteFile(path, fmt.Appendf(nil, "%064s\r\neth0", name), 0o600); err != nil {
			b.Fatal(err)
		}
		if err := os.Chtimes(path, made, made); err != nil {
			b.Fatal(err)
		}
	}
	for i := range size {
		name := ip.String()
		switch {
		case leakEvery > 0 && i%leakEvery == 0:
			leaks = append(leaks, name)
		case by == "container":
			write(name)
			pods = append(pods, podsource.Pod{ContainerIDs: []string{fmt.Sprintf("%064s", name)}})
		default:
			write(name)
			live[ip] = true
			pods = append(pods, podsource.Pod{IPs: []netip.Addr{ip}})
		}
		ip = ip.Next()
	}
	r := n.reconciler(pods, Options{})
	pass := func() error {
		report, err := r.Reconcile(b.Context())
		held += report.LockHeld
		longest = max(longest, report.LongestHold)
		return err
	}
	if other := careless[by]; other != nil {
		pass = func() error { return other(filepath.Join(n.dataDir, network1), live) }
	}
	var before, after runtime.MemStats
	var bytes, mallocs uint64
	for b.Loop() {
		b.StopTimer()
		for _, name := range leaks {
			write(name)
		}
		runtime.ReadMemStats(&before)
		b.StartTimer()
		err := pass()
		b.StopTimer()
		runtime.ReadMemStats(&after)
		bytes += after.TotalAlloc - before.TotalAlloc
		mallocs += after.Mallocs - before.Mallocs
		rs, listErr := n.store.List(b.Context())
		if err != nil || listErr != nil || len(rs) != size-len(leaks) {
			b.Fatalf("%d reservations are left, errors %v and %v", len(rs), err, listErr)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(bytes)/float64(b.N*size), "B/reservation")
	b.ReportMetric(float64(held.Microseconds())/float64(b.N), "µs-locked")
	b.ReportMetric(float64(longest.Microseconds()), "µs-longest-hold")
	b.ReportMetric(float64(mallocs)/float64(b.N*size), "allocs/reservation")
}
