// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
)

// color is one that most eyes can tell from the others.
func color(who string) string {
	switch who {
	case ours:
		return "#0072b2"
	case walk:
		return "#d55e00"
	case del:
		return "#aa4499"
	case delPlugin:
		return "#882255"
	}
	return "#6e7781" // floor, no pass
}

// plotTime draws time over reservations, both logarithmic.
func (r *results) plotTime() string {
	c := chart{
		title: "One pass, 10 % leaked", right: 170,
		note: fmt.Sprintf("IPv4, %s, medians of %d runs; DEL is extrapolated from samples", r.places[0], r.config.runs),
		x:    axis{label: "reservations", log: true}, y: axis{label: "time of a pass", log: true},
	}
	low, high := math.Inf(1), 0.0
	for _, who := range []string{delPlugin, del, ours, walk, floor} {
		l := line{name: who, color: color(who), dash: who == floor}
		for _, size := range slices.Sorted(slices.Values(r.config.sizes)) {
			took := r.median(key{r.places[0], scenario{Size: size, Leaked: tenth}, who}, seconds)
			if !math.IsNaN(took) {
				l.points = append(l.points, [2]float64{float64(size), took})
				low, high = min(low, took), max(high, took)
			}
		}
		if len(l.points) > 0 {
			c.lines = append(c.lines, l)
		}
	}
	for _, size := range slices.Sorted(slices.Values(r.config.sizes)) {
		c.x.ticks = append(c.x.ticks, tick{float64(size), thousands(size)})
	}
	if len(c.x.ticks) == 1 { // an axis needs two
		c.x.ticks = append(c.x.ticks, tick{2 * c.x.ticks[0].at, ""})
	}
	c.y.ticks = powers(low, high)
	return c.svg()
}

// plotADD draws how many of the ADDs took how long at most, at the largest size.
func (r *results) plotADD() string {
	size := slices.Max(r.config.sizes)
	c := chart{
		title: fmt.Sprintf("The plugin's ADD beside passes, %s reservations", thousands(size)), right: 190,
		note:  "how many of the ADDs were done, by the time they took; passes run back to back, 10 % leaked before each",
		steps: true,
		x:     axis{label: "milliseconds", log: true},
		y:     axis{label: "ADDs done, %", ticks: []tick{{0, "0"}, {25, "25"}, {50, "50"}, {75, "75"}, {90, "90"}, {100, "100"}}},
	}
	low, high := math.Inf(1), 0.0
	for i := range r.adds {
		l := &r.adds[i]
		if l.size != size || len(l.sorted) == 0 {
			continue
		}
		out := line{name: l.load, color: color(l.load), dash: l.load == idle}
		for n, took := range l.sorted {
			ms := took.Seconds() * 1000
			if n == 0 {
				out.points = append(out.points, [2]float64{ms, 0})
			}
			out.points = append(out.points, [2]float64{ms, 100 * float64(n+1) / float64(len(l.sorted))})
			low, high = min(low, ms), max(high, ms)
		}
		c.lines = append(c.lines, out)
	}
	c.x.ticks = between(low, high)
	return c.svg()
}

// between are ticks at 1, 2 and 5 times the powers of ten that enclose all
// values closely.
func between(low, high float64) []tick {
	var out []tick
	for e := math.Floor(math.Log10(low)); ; e++ {
		for _, m := range []float64{1, 2, 5} {
			at := m * math.Pow(10, e)
			if at <= low {
				out = out[:0]
			}
			out = append(out, tickAt(at))
			if at >= high && len(out) > 1 {
				return out
			}
		}
	}
}
