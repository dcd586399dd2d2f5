// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// BenchmarkPass says what a whole pass costs: time, and bytes and allocations
// for each reservation. Every tenth reservation leaked, or none did.
func BenchmarkPass(b *testing.B) {
	for _, size := range []int{256, 65536} {
		for _, leakEvery := range []int{0, 10} {
			for _, by := range []string{"address", "container"} {
				name := fmt.Sprintf("reservations=%d/leaked=none/by=%s", size, by)
				if leakEvery > 0 {
					name = fmt.Sprintf("reservations=%d/leaked=1of%d/by=%s", size, leakEvery, by)
				}
				b.Run(name, func(b *testing.B) { benchmarkPass(b, size, leakEvery, by) })
			}
		}
	}
}

func benchmarkPass(b *testing.B, size, leakEvery int, by string) {
	n := newNode(b)
	ip := netip.MustParseAddr("10.64.0.1")
	var pods podsource.Static
	var leaks []string
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
		case by == "address":
			write(name)
			pods = append(pods, podsource.Pod{IPs: []netip.Addr{ip}})
		default:
			write(name)
			pods = append(pods, podsource.Pod{ContainerIDs: []string{fmt.Sprintf("%064s", name)}})
		}
		ip = ip.Next()
	}
	r := New(n.store, pods, Options{})
	var before, after runtime.MemStats
	var bytes, mallocs uint64
	for b.Loop() {
		b.StopTimer()
		for _, name := range leaks {
			write(name)
		}
		runtime.ReadMemStats(&before)
		b.StartTimer()
		report, err := r.Reconcile(b.Context())
		b.StopTimer()
		runtime.ReadMemStats(&after)
		bytes += after.TotalAlloc - before.TotalAlloc
		mallocs += after.Mallocs - before.Mallocs
		if err != nil || report.Counts()[Released] != len(leaks) {
			b.Fatalf("released %d of %d leaks, error %v", report.Counts()[Released], len(leaks), err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(bytes)/float64(b.N*size), "B/reservation")
	b.ReportMetric(float64(mallocs)/float64(b.N*size), "allocs/reservation")
}
