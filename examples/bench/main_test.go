// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	if os.Getenv(tracedEnv) != "" { // strace started this: be the program
		if err := entry(context.Background(), nil, os.Stdout, os.Stderr); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestQuick runs it all, with small sizes, and wants each table whole.
func TestQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the plugin some hundred times")
	}
	dir, out := t.TempDir(), t.TempDir()
	file, plots := filepath.Join(out, "bench.md"), filepath.Join(out, "plots")
	var stdout, stderr strings.Builder
	err := entry(t.Context(), []string{"--quick", "--dir", dir, "--tmpfs", "", "--markdown", file, "--svg", plots}, &stdout, &stderr)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v behind, error %v", left, err)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stdout.String(), string(written)); diff != "" {
		t.Errorf("printed and written differ (-printed +written):\n%s", diff)
	}
	tables := readTables(t, stdout.String())
	rows := make(map[string]int)
	for heading, table := range tables {
		rows[heading] = len(table) - 1
		for _, row := range table {
			if len(row) != len(table[0]) {
				t.Errorf("%s: a row has %d cells, its head %d: %q", heading, len(row), len(table[0]), row)
			}
		}
	}
	passes := 2 * (3 + 4 + 4) // sizes; contestants with nothing, a tenth and all leaked
	passes += 2 * 2           // the plugin's own DEL, where something leaked
	want := map[string]int{
		"Targets": len(targets()), "Passes: disk, IPv4": passes, "Passes: disk, dual stack": passes,
		"Latency of the plugin's ADD, with 10 % of the reservations leaked": 2 * 3,
		"System calls on files, a reservation":                              3 * 3,
	}
	if calls := "System calls on files, a reservation"; len(tables[calls]) == 0 && os.Getenv("CI") != "true" {
		t.Log("no system calls were counted: strace is missing, or not for this system")
		delete(want, calls)
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows by table (-want +got):\n%s", diff)
	}
	for heading, table := range tables {
		if heading != "Targets" { // those of sizes that --quick leaves out are not measured
			checkFigures(t, heading, table)
		}
	}
	checkSVG(t, filepath.Join(plots, "time.svg"), 5)        // all contestants
	checkSVG(t, filepath.Join(plots, "add-latency.svg"), 3) // all loads
}

// TestPasses: with --passes there is nothing else, and no plugin is built.
func TestPasses(t *testing.T) {
	var stdout, stderr strings.Builder
	dir, plots := t.TempDir(), filepath.Join(t.TempDir(), "plots")
	args := []string{"--passes", "--sizes", "16,32", "--runs", "1", "--dir", dir, "--tmpfs", "", "--plugin", "/nonexistent", "--svg", plots}
	if err := entry(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	rows := make(map[string]int)
	for heading, table := range readTables(t, stdout.String()) {
		rows[heading] = len(table) - 1
		if heading != "Targets" {
			checkFigures(t, heading, table)
		}
	}
	want := map[string]int{"Targets": len(targets()), "Passes: disk, IPv4": 2 * 2 * 3} // sizes, shares, contestants
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows by table (-want +got):\n%s", diff)
	}
	checkSVG(t, filepath.Join(plots, "time.svg"), 3)
}

// readTables returns the tables by the headings above them.
func readTables(t *testing.T, text string) map[string][][]string {
	t.Helper()
	tables := make(map[string][][]string)
	heading := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if after, ok := strings.CutPrefix(line, "### "); ok {
			heading = after
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") {
			continue
		}
		var row []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		tables[heading] = append(tables[heading], row)
	}
	return tables
}

// checkFigures wants a figure in each cell, but where none can be had.
func checkFigures(t *testing.T, heading string, table [][]string) {
	t.Helper()
	for _, row := range table[1:] {
		for i, cell := range row {
			column := table[0][i]
			outside := slices.Contains(row, delPlugin) && i > slices.Index(table[0], "x floor")
			offClock := slices.Contains(row, del) && slices.Contains([]string{"CPU ms", "CPU, x walk", "B a reservation", "allocations a reservation"}, column)
			noLock := column == "which" && slices.Contains(row, floor)
			if cell == "" && !noLock || cell == unknown && !outside && !offClock {
				t.Errorf("%s: no %s in %q", heading, column, row)
			}
		}
	}
}

// checkSVG wants an XML document that draws so many lines.
func checkSVG(t *testing.T, path string, want int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	lines := 0
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
			return
		}
		if e, ok := token.(xml.StartElement); ok && slices.ContainsFunc(e.Attr, func(a xml.Attr) bool { return a.Value == "line" }) {
			lines++
		}
	}
	if lines != want {
		t.Errorf("%s has %d lines, want %d", filepath.Base(path), lines, want)
	}
}
