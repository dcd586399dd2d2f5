// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkADD compares a successful ADD with one of host-local alone, and with one of a program
// that only executes host-local, in pairs of consecutive ADDs.
func BenchmarkADD(b *testing.B) {
	n := newTestNode(b)
	programs := []call{
		{program: filepath.Join(bin, "hostlocal-gc-ipam")},
		{program: filepath.Join(bin, "host-local")},
		{program: filepath.Join(bin, "only")},
	}
	took := make([][]time.Duration, len(programs))
	i := 0
	for b.Loop() {
		for p, c := range programs {
			c.command, c.id = "ADD", fmt.Sprint("c", i)
			begun := time.Now()
			if got := n.call(c); got.code != 0 {
				b.Fatal(got.out)
			}
			took[p] = append(took[p], time.Since(begun))
			c.command = "DEL"
			if got := n.call(c); got.code != 0 {
				b.Fatal(got.out)
			}
		}
		i++
	}
	for p, than := range []string{"", "host-local", "only"} {
		more := slices.Clone(took[0])
		for k := range more {
			more[k] -= took[p][k]
		}
		if p == 0 {
			more = took[0]
			than = "nothing"
		}
		slices.Sort(more)
		b.ReportMetric(float64(more[len(more)/2].Microseconds())/1000, "ms-median-more-than-"+than)
		b.ReportMetric(float64(more[len(more)*99/100].Microseconds())/1000, "ms-p99-more-than-"+than)
	}
	if leaked := strings.Join(modes(b, filepath.Join(n.dataDir(), network)), " "); strings.Contains(leaked, "eth0") {
		b.Errorf("left: %s", leaked)
	}
}
