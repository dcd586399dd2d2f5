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
	at := func(place string, dual bool, size int, leaked share, who string) key {
		return key{place, scenario{size, leaked, dual}, who}
	}
	ratio := func(size int, leaked share, who, rival string, f figure) func(*results, string, bool) float64 {
		return func(r *results, place string, dual bool) float64 {
			return r.ratio(at(place, dual, size, leaked, who), rival, f)
		}
	}
	// The worst of both of ours counts.
	worst := func(size int, shares []share, f func(*results, key) float64) func(*results, string, bool) float64 {
		return func(r *results, place string, dual bool) float64 {
			out := 0.0
			for _, leaked := range shares {
				for _, who := range []string{byAddress, byID} {
					out = maxOrNaN(out, f(r, at(place, dual, size, leaked, who)))
				}
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
	return []target{
		{"all in all, addresses only, 65,536 with 10 % leaked", 0.75, false, " x walk", ratio(large, tenth, byAddress, walk, seconds)},
		{"... to floor", 1.7, false, " x floor", ratio(large, tenth, byAddress, floor, seconds)},
		{"all in all, addresses only, 65,536 with none leaked", 0.75, false, " x walk", ratio(large, none, byAddress, walk, seconds)},
		{"all in all, container IDs, 65,536 with 10 % leaked", 1.4, false, " x walk", ratio(large, tenth, byID, walk, seconds)},
		{"lock held in all, 65,536 with 10 % leaked", 0.33, false, " x walk", worst(large, []share{tenth}, to(walk, held))},
		{"longest single hold, 65,536 all leaked", 0.005, false, " s", worst(large, []share{all}, of(longest))},
		{"plugin's ADD, p99 during passes at 65,536", 1.2, false, " x no pass", addRatio(large)},
		{"against DEL, 4,096 with 10 % leaked", 300, true, " x faster", func(r *results, place string, dual bool) float64 {
			rival := at(place, dual, 4096, tenth, del)
			return -maxOrNaN(-r.ratio(rival, byAddress, seconds), -r.ratio(rival, byID, seconds))
		}},
		{"memory, 65,536 with none or 10 % leaked", 200, false, " B a reservation", worst(large, []share{none, tenth}, of(memory))},
		{"... allocations", 1, false, " a reservation", worst(large, []share{none, tenth}, of(allocs))},
		{"256 reservations, 10 % leaked", 2.5, false, " x walk", worst(256, []share{tenth}, to(walk, seconds))},
		{"... lock held", 0.5, false, " x walk", worst(256, []share{tenth}, to(walk, held))},
		{"lock held with nothing leaked, 65,536", 0, false, " s", worst(large, []share{none}, of(held))},
	}
}

// addRatio compares ADD's p99 beside our passes with that beside none: the
// worse of both of ours. It is measured in the first place, with IPv4.
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
		return max(p99[byAddress], p99[byID]) / p99[idle]
	}
}

func maxOrNaN(a, b float64) float64 {
	if math.IsNaN(a) || math.IsNaN(b) {
		return math.NaN()
	}
	return max(a, b)
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
