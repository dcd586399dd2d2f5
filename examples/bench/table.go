// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// markdown says everything in tables, which are aligned to be read as they are.
func (r *results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s, %d runs each, in %s. Seconds and counts are medians; ratios are medians of the\n"+
		"ratios within one round.\n", r.machine, r.config.runs, r.took.Round(time.Second))
	if r.load[1] != "" {
		fmt.Fprintf(&b, "\nLoad average (of the last 1, 5 and 15 minutes): %s before, %s after. Where others are at work, rely on CPU time,\n"+
			"counts and bytes: a hold of the lock lasts longer when its thread has to wait for a CPU.\n", r.load[0], r.load[1])
	}
	for _, remark := range r.remarks {
		fmt.Fprintf(&b, "\n%s\n", remark)
	}
	b.WriteString("\n### Targets\n\n" + r.targetTable())
	for _, c := range r.columns() {
		fmt.Fprintf(&b, "\n### Passes: %s\n\n%s", c, r.passTable(c))
	}
	if r.config.passes {
		return b.String()
	}
	b.WriteString("\n- : can't be seen from outside of the plugin's process, or, of DEL, not told apart from what was done off the clock.\n" +
		"DEL is quadratic: of many leaks " + dels(r.config.sizes) + " were timed, and the sum extrapolated.\n")
	b.WriteString("\n### System calls on files, a reservation\n\n" + r.callTable())
	b.WriteString("\n### Latency of the plugin's ADD, with 10 % of the reservations leaked\n\n" + r.addTable())
	return b.String()
}

// A column is one place and family.
type column struct {
	place string
	dual  bool
}

func (c column) String() string { return c.place + ", " + scenario{Dual: c.dual}.family() }

// columns are those in which passes were measured.
func (r *results) columns() (out []column) {
	for _, k := range r.order {
		if c := (column{k.place, k.Dual}); !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

func dels(sizes []int) string {
	var parts []string
	for _, size := range sizes {
		parts = append(parts, fmt.Sprintf("%d (at %s)", delsOnClock(size), thousands(size)))
	}
	return strings.Join(parts, ", ")
}

func (r *results) targetTable() string {
	head := []string{"what", "target"}
	columns := r.columns()
	for _, c := range columns {
		head = append(head, c.String())
	}
	rows := [][]string{append(head, "verdict")}
	for _, t := range targets() {
		row := []string{t.what, t.want()}
		var values []float64
		for _, c := range columns {
			x := t.of(r, c.place, c.dual)
			values = append(values, x)
			row = append(row, number(x))
		}
		rows = append(rows, append(row, t.verdict(values)))
	}
	return align(rows, 2)
}

func (r *results) passTable(of column) string {
	rows := [][]string{{"reservations", "leaked", "who", "ms", "x walk", "x floor", "CPU ms", "CPU, x walk", "lock held ms", "longest hold ms",
		"B a reservation", "allocations a reservation"}}
	for _, k := range r.order {
		if k.place != of.place || k.Dual != of.dual {
			continue
		}
		rows = append(rows, []string{
			thousands(k.Size), string(k.Leaked), k.who,
			millis(r.median(k, seconds)), number(r.ratio(k, walk, seconds)), number(r.ratio(k, floor, seconds)),
			millis(r.median(k, cpu)), number(r.ratio(k, walk, cpu)), millis(r.median(k, held)), millis(r.median(k, longest)),
			number(r.median(k, memory)), number(r.median(k, allocs)),
		})
	}
	return align(rows, 3)
}

func (r *results) callTable() string {
	if len(r.calls) == 0 {
		return "Not counted: " + r.notCalls + ".\n"
	}
	rows := [][]string{{"reservations", "leaked", "who", "in all", "which"}}
	for i := range r.calls {
		c := &r.calls[i]
		names := slices.SortedFunc(maps.Keys(c.byName), func(a, b string) int {
			if d := c.byName[b] - c.byName[a]; d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		var which []string
		for _, name := range names {
			each := float64(c.byName[name]) / float64(c.Size)
			if each >= 0.005 || name == "flock" {
				which = append(which, name+" "+number(each))
			}
		}
		rows = append(rows, []string{thousands(c.Size), string(c.Leaked), c.who,
			number(float64(c.total()) / float64(c.Size)), strings.Join(which, ", ")})
	}
	return align(rows, 3)
}

func (r *results) addTable() string {
	rows := [][]string{{"reservations", "while", "p50 ms", "p99 ms", "max ms", "p99, x no pass", "ADDs", "passes meanwhile"}}
	var base time.Duration
	for i := range r.adds {
		l := &r.adds[i]
		if l.load == idle {
			base = l.at(0.99)
		}
		rows = append(rows, []string{thousands(l.size), l.load,
			millis(l.at(0.5).Seconds()), millis(l.at(0.99).Seconds()), millis(l.at(1).Seconds()),
			number(float64(l.at(0.99)) / float64(base)), strconv.Itoa(len(l.sorted)), strconv.Itoa(l.passes)})
	}
	return align(rows, 2) + "\nThe p99 of fewer than 100 ADDs is their maximum. The plugin reads every file of the directory itself, under the lock, in each\n" +
		"ADD. Released files come back between the passes as hard links.\n"
}

// align makes a Markdown table of rows, the first of which is its head. Columns
// from the given one on hold numbers.
func align(rows [][]string, numbers int) string {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], 3, utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i >= numbers && isNumber(rows[1:], i) {
				cell, pad = pad+cell, ""
			}
			fmt.Fprintf(&b, "| %s%s ", cell, pad)
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for i := range row {
			dashes := strings.Repeat("-", width[i]+2)
			if i >= numbers && isNumber(rows[1:], i) {
				dashes = dashes[1:] + ":"
			}
			b.WriteString("|" + dashes)
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// isNumber reports whether a column holds numbers alone.
func isNumber(rows [][]string, column int) bool {
	return !slices.ContainsFunc(rows, func(row []string) bool {
		_, err := strconv.ParseFloat(strings.ReplaceAll(row[column], ",", ""), 64)
		return err != nil && row[column] != unknown
	})
}

// unknown stands where there is no figure.
const unknown = "-"

func millis(seconds float64) string { return number(seconds * 1000) }

// number writes three digits that count, and no exponent.
func number(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return unknown
	case x == 0:
		return "0"
	case math.Abs(x) >= 99.95:
		return thousands(int(math.Round(x)))
	case math.Abs(x) < 0.001:
		return "0.000"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return strconv.FormatFloat(x, 'f', max(0, min(3, digits)), 64)
}

func thousands(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
