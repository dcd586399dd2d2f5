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
	"slices"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// addRange does not overlap with the reservations of a netDir.
var addRange = plugintest.Range{Subnet: "10.64.0.0/14", Start: "10.67.0.1"}

// BenchmarkADD measures how long the real plugin's ADD takes while passes run back to back:
// ours, those of walk, or none, alternating every few ADDs. A tenth of the reservations has
// leaked before each pass.
//
//	go test ./gc/plugintest -run '^$' -bench ADD -benchtime 10x
func BenchmarkADD(b *testing.B) {
	for _, size := range costSizes() {
		b.Run(fmt.Sprintf("reservations=%d", size), func(b *testing.B) { benchmarkADD(b, size) })
	}
}

func benchmarkADD(b *testing.B, size int) {
	l := newLoad(b, size)
	p := &plugintest.Plugin{Binary: plugintest.Build(b), DataDir: l.d.dataDir, Network: costNetwork, Ranges: []plugintest.Range{addRange}}
	const none = "none"
	took := make(map[string][]time.Duration)
	passes := make(map[string]int)
	n := 0
	adds := func(beside string) {
		for range min(30, max(3, 1<<17/size)) {
			n++
			begun := time.Now()
			ips, err := p.Add(b.Context(), fmt.Sprintf("%064x", n), "eth0")
			took[beside] = append(took[beside], time.Since(begun))
			if err != nil {
				b.Fatal(err)
			}
			for _, ip := range ips {
				if err := os.Remove(p.File(ip)); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	for b.Loop() {
		l.relink()
		adds(none)
		for _, by := range []string{ours, walk} {
			passes[by] += l.during(by, func() { adds(by) })
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of all loads means nothing
	for beside, all := range took {
		slices.Sort(all)
		name := "beside-" + beside
		b.ReportMetric(milliseconds(all[len(all)/2]), name+"-p50-ms")
		b.ReportMetric(milliseconds(all[(len(all)*99+99)/100-1]), name+"-p99-ms")
		if beside != none {
			b.ReportMetric(float64(passes[beside]), "passes-of-"+beside)
		}
	}
}

// A load runs passes back to back.
type load struct {
	b      *testing.B
	d      *netDir
	spare  string // a directory with a second name of each leaked file
	passes map[string]func(context.Context) (cost, error)
}

func newLoad(b *testing.B, size int) *load {
	b.Helper()
	d := newNetDir(b, size, 10)
	l := &load{b: b, d: d, spare: b.TempDir()}
	for _, f := range d.leaks {
		if err := os.Link(f.path, l.spareOf(f)); err != nil {
			b.Fatal(err)
		}
	}
	live := d.live()
	for ip := netip.MustParseAddr(addRange.Start); ip != netip.MustParseAddr("10.67.64.0"); ip = ip.Next() {
		live[ip] = true // walk has no minimum age, so the addresses of the ADDs must be in its list
	}
	l.passes = map[string]func(context.Context) (cost, error){
		ours: collectorOf(b, ours, d),
		walk: func(context.Context) (cost, error) { return walkPass(d.dir, live) },
	}
	return l
}

func (l *load) spareOf(f costFile) string { return filepath.Join(l.spare, f.ip.String()) }

// relink puts the leaked files back, without the lock, as fast as possible.
func (l *load) relink() {
	for _, f := range l.d.leaks {
		if err := os.Link(l.spareOf(f), f.path); err != nil && !errors.Is(err, fs.ErrExist) {
			l.b.Error(err)
		}
	}
}

// during calls work while passes run back to back, and returns the number of passes.
func (l *load) during(by string, work func()) (passes int) {
	ctx, cancel := context.WithCancel(l.b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil && !l.b.Failed() {
			if _, err := l.passes[by](ctx); err != nil && ctx.Err() == nil {
				l.b.Errorf("a pass of %s: %v", by, err)
				return
			}
			passes++
			l.relink()
		}
	}()
	defer func() { cancel(); <-ended }()
	work()
	cancel()
	<-ended
	return passes
}
