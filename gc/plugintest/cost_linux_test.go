// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// leakShares are the shares of reservations that have leaked: every nth, or none.
var leakShares = []struct {
	every      int
	name, text string
}{{0, "none", "none"}, {10, "10pct", "10 %"}, {1, "all", "all"}}

// costSizes returns the numbers of reservations in a directory.
func costSizes() []int {
	if testing.Short() {
		return []int{64}
	}
	return []int{256, 4096, 65536}
}

// BenchmarkPass runs floor, walk, DEL and ours in turn on the same directory, and prints the
// table of the README:
//
//	go test ./gc/plugintest -run '^$' -bench Pass -benchtime 5x -timeout 1h
//
// One iteration runs each collector once, or several times in a small directory. The ratios
// are medians of the ratios within a round, because a machine that is slow for a while is
// slow for all of a round. Times are medians, except for the longest hold.
func BenchmarkPass(b *testing.B) {
	var table strings.Builder
	table.WriteString("| reservations | leaked | time / walk's | CPU time / walk's | time / floor's | DEL's time / ours | bytes per reservation " +
		"| allocations per reservation | lock held in all / walk's | longest hold: median, worst |\n|" + strings.Repeat("---:|", 10) + "\n")
	for _, size := range costSizes() {
		for _, share := range leakShares {
			b.Run(fmt.Sprintf("reservations=%d/leaked=%s", size, share.name), func(b *testing.B) {
				names := []string{floor, walk, ours}
				if share.every > 0 {
					names = append(names, del)
				}
				costs := benchmarkPass(b, newNetDir(b, size, share.every), names)
				report(b, costs, size)
				fmt.Fprintf(&table, "| %s | %s | %s\n", thousands(size), share.text, row(costs, size))
			})
		}
	}
	fmt.Printf("\n%s\n", table.String())
}

// roundsOf returns the number of runs of each collector in one iteration.
func roundsOf(size int) int {
	if testing.Short() {
		return 1
	}
	return max(1, 2048/size)
}

// benchmarkPass returns the costs of each collector, round by round.
func benchmarkPass(b *testing.B, d *netDir, names []string) map[string][]cost {
	b.Helper()
	costs := make(map[string][]cost)
	turns := make(map[string]func() cost)
	for _, name := range names {
		turn := collectorOf(b, name, d)
		turns[name] = func() cost {
			c, err := turn(b.Context())
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			return c
		}
	}
	lock := filepath.Join(d.dir, "lock")
	for round := 0; b.Loop(); round++ {
		for range roundsOf(len(d.files)) {
			for i := range names {
				name := names[(round+i)%len(names)] // in each round another one is first
				if err := os.Remove(lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
					b.Fatal(err)
				}
				costs[name] = append(costs[name], turns[name]())
				d.check(name)
				if _, err := os.Lstat(lock); err == nil && name == ours && len(d.leaks) == 0 {
					b.Fatal("took the lock where nothing had leaked")
				}
				d.write(d.leaks)
			}
		}
	}
	return costs
}

// The figures of a cost.
var (
	wall       = func(c cost) float64 { return c.wall.Seconds() }
	cpu        = func(c cost) float64 { return c.cpu.Seconds() }
	held       = func(c cost) float64 { return c.held.Seconds() }
	longest    = func(c cost) float64 { return c.longest.Seconds() }
	heapBytes  = func(c cost) float64 { return c.bytes }
	heapAllocs = func(c cost) float64 { return c.allocs }
)

// report reports the times of each collector, and the ratios of ours to the others.
func report(b *testing.B, costs map[string][]cost, size int) {
	b.ReportMetric(0, "ns/op") // the sum of all collectors means nothing
	for name, all := range costs {
		b.ReportMetric(1000*medianOf(all, wall), name+"-ms")
		b.ReportMetric(1000*medianOf(all, cpu), name+"-cpu-ms")
		if name != ours {
			b.ReportMetric(ratioOf(costs[ours], all, wall), "x-"+name)
			b.ReportMetric(ratioOf(costs[ours], all, cpu), "cpu-x-"+name)
		}
	}
	b.ReportMetric(medianOf(costs[ours], heapBytes)/float64(size), "B/reservation")
	b.ReportMetric(medianOf(costs[ours], heapAllocs)/float64(size), "allocs/reservation")
	b.ReportMetric(1000*medianOf(costs[ours], longest), "longest-hold-median-ms")
	b.ReportMetric(1000*maxOf(costs[ours], longest), "longest-hold-max-ms")
}

// row returns a row of the README's table, from the third column on.
func row(costs map[string][]cost, size int) string {
	our := costs[ours]
	dels, lock, hold := "", "none", "none"
	if len(costs[del]) > 0 {
		dels = fmt.Sprintf("%.0f", ratioOf(costs[del], our, wall))
	}
	if maxOf(our, held) > 0 {
		lock = fmt.Sprintf("%.2f", ratioOf(our, costs[walk], held))
		hold = fmt.Sprintf("%.1f, %.1f ms", 1000*medianOf(our, longest), 1000*maxOf(our, longest))
	}
	return fmt.Sprintf("%.2f | %.2f | %.2f | %s | %.0f | %.1f | %s | %s |",
		ratioOf(our, costs[walk], wall), ratioOf(our, costs[walk], cpu), ratioOf(our, costs[floor], wall), dels,
		medianOf(our, heapBytes)/float64(size), medianOf(our, heapAllocs)/float64(size), lock, hold)
}

func figuresOf(all []cost, f func(cost) float64) []float64 {
	out := make([]float64, len(all))
	for i, c := range all {
		out[i] = f(c)
	}
	return out
}

func medianOf(all []cost, f func(cost) float64) float64 { return median(figuresOf(all, f)) }

func maxOf(all []cost, f func(cost) float64) float64 { return slices.Max(figuresOf(all, f)) }

// ratioOf returns the median of the ratios of a to b in the same round.
func ratioOf(a, b []cost, f func(cost) float64) float64 {
	ratios := figuresOf(a, f)
	for i := range ratios {
		ratios[i] /= f(b[i])
	}
	return median(ratios)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func milliseconds(d time.Duration) float64 { return 1000 * d.Seconds() }

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
