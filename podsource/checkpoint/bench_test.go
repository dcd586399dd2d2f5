// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkAdd records an attachment beside 1,000 others. disk-ms/op is the time to
// write and sync the same bytes, and beside-ms/op the rest.
func BenchmarkAdd(b *testing.B) {
	path := filepath.Join(b.TempDir(), "attachments")
	entries := make([]Entry, 1000)
	for i := range entries {
		e := entry(fmt.Sprintf("%064x", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250))
		e.IPs = append(e.IPs, entry("x", fmt.Sprintf("fd00::%x", i+1)).IPs...)
		e.NetNS = NetNS{Path: fmt.Sprintf("/run/netns/cni-%08x-0000-0000-0000-000000000000", i), Dev: 4, Inode: 4026532000 + uint64(i), ID: uint64(i + 1), Dir: Directory{25, 2, 1 << 60}}
		entries[i] = e
	}
	content, err := encoded(&record{BootID: "5c7b9a1e-0000-0000-0000-000000000000", Written: time.Now(), Entries: entries})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := replace(path, content); err != nil {
		b.Fatal(err)
	}
	c := opened(b, path, ofBoot("5c7b9a1e-0000-0000-0000-000000000000"))
	b.ReportAllocs()
	var disk time.Duration
	for i := 0; b.Loop(); i++ {
		if err := c.Add(entries[i*7%len(entries)]); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		start := time.Now()
		if _, err := replace(path, content); err != nil {
			b.Fatal(err)
		}
		disk += time.Since(start)
		b.StartTimer()
	}
	perOp := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(b.N) }
	b.ReportMetric(perOp(b.Elapsed()), "ms/op")
	b.ReportMetric(perOp(disk), "disk-ms/op")
	b.ReportMetric(perOp(b.Elapsed()-disk), "beside-ms/op")
}

// BenchmarkPods calls Pods with 1,000 attachments.
func BenchmarkPods(b *testing.B) {
	c := begun(b, filepath.Join(b.TempDir(), "attachments"), served)
	s := &state{written: true}
	for i := range 1000 {
		s.items = append(s.items, &item{Entry: entry(fmt.Sprintf("%064x", i), "10.0.0.2")})
	}
	c.state.Store(s)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Pods(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
