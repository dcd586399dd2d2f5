// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A chart is a plot of lines. Nothing in it is a library's: axes, lines and
// labels at their ends are all that two plots need, and the plotting packages
// bring fonts, PDF and LaTeX with them.
type chart struct {
	title, note string
	x, y        axis
	lines       []line
	right       int  // room for the labels, in pixels
	steps       bool // the lines are stairs to 100 %, without dots
}

type axis struct {
	label string
	log   bool
	ticks []tick
}

type tick struct {
	at   float64
	text string
}

type line struct {
	name, color string
	dash        bool
	points      [][2]float64
}

const (
	chartWidth, chartHeight      = 860, 480
	chartLeft, chartTop, chartUp = 96, 72, 60
)

// scale returns where a value lies between the axis' first and last tick, from 0
// to 1.
func (a *axis) scale(v float64) float64 {
	low, high := a.ticks[0].at, a.ticks[len(a.ticks)-1].at
	if a.log {
		low, high, v = math.Log(low), math.Log(high), math.Log(v)
	}
	return (v - low) / (high - low)
}

// svg draws the chart. It stands alone: no script, and no font or style from
// elsewhere.
func (c *chart) svg() string {
	right, bottom := chartWidth-c.right, chartHeight-chartUp
	px := func(v float64) float64 { return chartLeft + c.x.scale(v)*float64(right-chartLeft) }
	py := func(v float64) float64 { return float64(bottom) - c.y.scale(v)*float64(bottom-chartTop) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="%[3]s">
<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a }
.h { font-size: 17px; font-weight: 600; fill: #24292f }
.m { text-anchor: middle } .e { text-anchor: end }
.l { font-weight: 600 }
.grid { stroke: #d8dee4; stroke-width: 1 }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
</style>
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, chartWidth, chartHeight, escape(c.title))
	text := func(x, y float64, class, style, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\"%s>%s</text>\n", x, y, class, style, escape(s))
	}
	text(chartLeft, 30, "h", "", c.title)
	text(chartLeft, 51, "", "", c.note)
	for _, t := range c.x.ticks {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>\n", px(t.at), chartTop, bottom)
		text(px(t.at), float64(bottom)+20, "m", "", t.text)
	}
	for _, t := range c.y.ticks {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", chartLeft, py(t.at), right)
		text(chartLeft-10, py(t.at)+4, "e", "", t.text)
	}
	text(float64(chartLeft+right)/2, chartHeight-16, "m", "", c.x.label)
	text(0, 0, "m", fmt.Sprintf(` transform="translate(18 %d) rotate(-90)"`, (chartTop+bottom)/2), c.y.label)
	for i := range c.lines {
		c.draw(&b, &c.lines[i], px, py)
	}
	c.labels(text, px, py)
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *chart) draw(b *strings.Builder, l *line, px, py func(float64) float64) {
	dash := ""
	if l.dash {
		dash = ` stroke-dasharray="6 5"`
	}
	var path strings.Builder
	for i, p := range l.points {
		switch {
		case i == 0:
			fmt.Fprintf(&path, "M%.1f %.1f", px(p[0]), py(p[1]))
		case c.steps:
			fmt.Fprintf(&path, "H%.1fV%.1f", px(p[0]), py(p[1]))
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", px(p[0]), py(p[1]))
		}
	}
	fmt.Fprintf(b, "<path class=\"line\" stroke=\"%s\"%s d=\"%s\"/>\n", l.color, dash, path.String())
	if c.steps {
		return
	}
	for _, p := range l.points {
		fmt.Fprintf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>%s: %s ms</title></circle>\n",
			px(p[0]), py(p[1]), l.color, escape(l.name), millis(p[1]))
	}
}

// labels names the lines at their ends, from the top down, and keeps the names
// apart.
func (c *chart) labels(text func(x, y float64, class, style, s string), px, py func(float64) float64) {
	type label struct {
		x, y float64
		line *line
	}
	var labels []label
	for i := range c.lines {
		l := &c.lines[i]
		end := l.points[len(l.points)-1]
		if c.steps { // all end at the top: a legend in its place
			labels = append(labels, label{float64(chartWidth - c.right), chartTop + 14, l})
			continue
		}
		labels = append(labels, label{px(end[0]), py(end[1]), l})
	}
	slices.SortStableFunc(labels, func(a, b label) int { return int(a.y - b.y) })
	const apart = 18
	last := math.Inf(-1)
	for _, l := range labels {
		if l.x == labels[0].x || l.x >= float64(chartWidth-c.right)-1 {
			l.y = max(l.y, last+apart)
			last = l.y
		}
		if len(l.line.points) == 1 { // above its dot, clear of the lines that pass it
			l.x, l.y = l.x-8, l.y-18
		}
		text(l.x+12, l.y+4, "l", fmt.Sprintf(` style="fill:%s"`, l.line.color), l.line.name)
	}
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a bytes.Buffer takes everything
	return b.String()
}

func tickAt(v float64) tick {
	if v >= 1000 {
		return tick{v, thousands(int(v))}
	}
	return tick{v, strconv.FormatFloat(v, 'f', -1, 64)}
}

// powers are ticks at the powers of ten that enclose all values, which are in
// seconds.
func powers(low, high float64) []tick {
	var out []tick
	first := math.Floor(math.Log10(low))
	for e := first; e == first || math.Pow(10, e-1) < high; e++ {
		at := math.Pow(10, e)
		t := tickAt(at)
		if t.text += " s"; at < 1 {
			t.text = tickAt(math.Round(at*1e6)/1e3).text + " ms"
		}
		out = append(out, t)
	}
	return out
}
