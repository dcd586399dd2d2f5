// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkHoldAtCPULimit measures the longest hold of the lock in a container whose CPU
// limit is 200m, which is common for agents. After 20 ms of CPU time in a period of 100 ms,
// the kernel stops all threads of the container until the next period, including one that
// holds a lock. Every tenth reservation has leaked.
//
//	go test ./gc/plugintest -run '^$' -bench HoldAtCPULimit -benchtime 20x # root
func BenchmarkHoldAtCPULimit(b *testing.B) {
	const period, quota = 100 * time.Millisecond, 20 * time.Millisecond
	for _, size := range costSizes() {
		b.Run(fmt.Sprintf("reservations=%d", size), func(b *testing.B) {
			d := newNetDir(b, size, 10)
			turns := make(map[string][]cost)
			group := newCPUGroup(b, quota, period)
			for b.Loop() {
				for _, name := range []string{ours, walk} {
					turn := collectorOf(b, name, d)
					group.enter()
					c, err := turn(b.Context())
					group.leave()
					if err != nil {
						b.Fatalf("%s: %v", name, err)
					}
					turns[name] = append(turns[name], c)
					d.check(name)
					d.write(d.leaks)
				}
			}
			b.ReportMetric(0, "ns/op")
			for name, all := range turns {
				b.ReportMetric(1000*medianOf(all, wall), name+"-ms")
				b.ReportMetric(1000*medianOf(all, longest), name+"-longest-hold-median-ms")
				b.ReportMetric(1000*maxOf(all, longest), name+"-longest-hold-max-ms")
			}
			b.ReportMetric(float64(group.throttled()), "periods-throttled")
		})
	}
}

// A cpuGroup is a control group with a CPU limit, which this process enters and
// leaves.
type cpuGroup struct {
	b         *testing.B
	dir, home string // its directory, and that of this process's own group
}

// newCPUGroup makes a group at the root of the cpu controller's hierarchy (version 1) or of
// the unified one (version 2), whose root has that controller enabled for its children.
func newCPUGroup(b *testing.B, quota, period time.Duration) *cpuGroup {
	b.Helper()
	root, home, limits := "/sys/fs/cgroup", "", map[string]string{"cpu.max": fmt.Sprintf("%d %d", quota.Microseconds(), period.Microseconds())}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(own)) { // cgroups(7): ID, controllers and path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			b.Fatalf("/proc/self/cgroup has the line %q", line)
		}
		switch version1 := "/sys/fs/cgroup/" + fields[1]; {
		case fields[1] == "" && home == "":
			home = fields[2]
		case strings.HasPrefix(fields[1]+",", "cpu,"):
			root, home = version1, fields[2]
			limits = map[string]string{"cpu.cfs_quota_us": fmt.Sprint(quota.Microseconds()), "cpu.cfs_period_us": fmt.Sprint(period.Microseconds())}
		}
	}
	g := &cpuGroup{b, filepath.Join(root, fmt.Sprintf("plugintest-%d", os.Getpid())), filepath.Join(root, home)}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		if errors.Is(err, os.ErrPermission) && os.Getenv("CI") == "" {
			b.Skip("SKIPPED: needs root: ", err)
		}
		b.Fatal(err)
	}
	b.Cleanup(func() {
		g.leave()
		if err := os.Remove(g.dir); err != nil {
			b.Error(err)
		}
	})
	for file, limit := range limits {
		g.set(filepath.Join(g.dir, file), limit)
	}
	return g
}

func (g *cpuGroup) enter() { g.set(filepath.Join(g.dir, "cgroup.procs"), fmt.Sprint(os.Getpid())) }
func (g *cpuGroup) leave() { g.set(filepath.Join(g.home, "cgroup.procs"), fmt.Sprint(os.Getpid())) }

func (g *cpuGroup) set(file, value string) {
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		g.b.Fatal(err)
	}
}

// throttled returns the number of periods in which the kernel stopped the group.
func (g *cpuGroup) throttled() int {
	stat, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		g.b.Fatal(err)
	}
	for line := range strings.Lines(string(stat)) {
		if text, ok := strings.CutPrefix(line, "nr_throttled "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				g.b.Fatal(err)
			}
			return n
		}
	}
	g.b.Fatalf("cpu.stat has no line nr_throttled: %s", stat)
	return 0
}
