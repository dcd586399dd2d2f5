// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// A target is what must come out. It looks at one place and family, and gives
// NaN where that was not measured.
type target struct {
	what    string
	limit   float64
	atLeast bool // the limit is the least that will do, not the most
	unit    string
	of      func(r *results, place string, dual bool) float64
}

func (t *target) met(x float64) bool {
	if t.atLeast {
		return x >= t.limit
	}
	return x <= t.limit
}

// want says what the limit is.
func (t *target) want() string {
	if t.atLeast {
		return "at least " + number(t.limit) + t.unit
	}
	return "at most " + number(t.limit) + t.unit
}

// targets are those that the project has set itself.
func targets() []target {
	const large = 65536
	at := func(place string, dual bool, size int, leaked share) key {
		return key{place, scenario{size, leaked, dual}, ours}
	}
	// The worst of several shares counts, and NaN is the worst.
	worst := func(size int, shares []share, f func(*results, key) float64) func(*results, string, bool) float64 {
		return func(r *results, place string, dual bool) float64 {
			out := 0.0
			for _, leaked := range shares {
				out = max(out, f(r, at(place, dual, size, leaked)))
			}
			return out
		}
	}
	to := func(rival string, f figure) func(*results, key) float64 {
		return func(r *results, k key) float64 { return r.ratio(k, rival, f) }
	}
	of := func(f figure) func(*results, key) float64 {
		return func(r *results, k key) float64 { return r.median(k, f) }
	}
	usual := []share{none, tenth}
	return []target{
		{"a pass, 65,536 with 10 % leaked", 1.5, false, " x walk", worst(large, []share{tenth}, to(walk, seconds))},
		{"a pass, 65,536 with none leaked", 1.4, false, " x walk", worst(large, []share{none}, to(walk, seconds))},
		{"a pass, 4,096 with none or 10 % leaked", 1.7, false, " x walk", worst(4096, usual, to(walk, seconds))},
		{"a pass, 256 with none or 10 % leaked", 2, false, " x walk", worst(256, usual, to(walk, seconds))},
		{"a pass against DEL, 4,096 with 10 % leaked", 300, true, " x faster", func(r *results, place string, dual bool) float64 {
			k := at(place, dual, 4096, tenth)
			k.who = del
			return r.ratio(k, ours, seconds)
		}},
		{"lock held in all, 65,536 with 10 % leaked", 0.36, false, " x walk", worst(large, []share{tenth}, to(walk, held))},
		{"lock held in all, 65,536 with none leaked", 0, false, " s", worst(large, []share{none}, of(held))},
		{"longest single hold, 65,536 with 10 % leaked", 0.005, false, " s", worst(large, []share{tenth}, of(longest))},
		{"... all leaked", 0.005, false, " s", worst(large, []share{all}, of(longest))},
		{"plugin's ADD, p99 during passes at 65,536", 1.2, false, " x no pass", addRatio(large)},
		{"memory, 65,536 with none or 10 % leaked", 400, false, " B a reservation", worst(large, usual, of(memory))},
		{"... allocations", 3, false, " a reservation", worst(large, usual, of(allocs))},
	}
}

// addRatio compares ADD's p99 beside our passes with that beside none. It is
// measured in the first place, with IPv4.
func addRatio(size int) func(*results, string, bool) float64 {
	return func(r *results, place string, dual bool) float64 {
		p99 := make(map[string]float64)
		for i := range r.adds {
			if l := &r.adds[i]; l.size == size {
				p99[l.load] = l.at(0.99).Seconds()
			}
		}
		if dual || len(r.places) == 0 || place != r.places[0] || p99[idle] == 0 {
			return math.NaN()
		}
		return p99[ours] / p99[idle]
	}
}

// verdict says whether every value that was measured meets the target.
func (t *target) verdict(values []float64) string {
	measured, met := 0, 0
	for _, x := range values {
		if math.IsNaN(x) {
			continue
		}
		measured++
		if t.met(x) {
			met++
		}
	}
	switch {
	case measured == 0:
		return "not measured"
	case met == measured:
		return "met"
	case met > 0:
		return fmt.Sprintf("not met in %d of %d", measured-met, measured)
	}
	return "not met"
}
