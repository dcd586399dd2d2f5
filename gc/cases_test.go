// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

// TestCases runs the scripts of testdata/cases, whose README.md describes them. The name of each begins
// with the number of its first hazard, or with the rule that it tests.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), gc.InBubble(func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range parse(t, string(text)) {
				if err := newNode(t).run(c); err != nil {
					t.Errorf("%s:%v", file, err)
				}
			}
		}))
	}
}

// wait lets time pass in the bubble of a case.
func wait(d time.Duration) { time.Sleep(d) }

// A line of a case: what is done, or, if it is indented, a part of what a pass must report.
type line struct {
	at       int    // its number in the file
	row      string // the row of the case's table that it is of
	indented bool
	words    []string
}

// parse returns the cases of a script. One with a table is a case for each row.
func parse(t *testing.T, text string) (cases [][]line) {
	t.Helper()
	var texts, rows []string // of one case; texts[i] is line first+i
	first := 1
	for i, text := range append(strings.Split(text, "\n"), "---") {
		text, _, _ = strings.Cut(text, "#")
		switch {
		case strings.HasPrefix(text, "|"):
			rows = append(rows, text)
			texts = append(texts, "")
		case strings.TrimSpace(text) != "---":
			if texts = append(texts, text); len(rows) > 0 && strings.TrimSpace(text) != "" {
				t.Fatalf("line %d comes after the table of its case", i+1)
			}
		case len(rows) == 0:
			cases = append(cases, lines(texts, first, "", strings.NewReplacer()))
			texts, first = nil, i+2
		default:
			names := cells(rows[0])
			if len(rows) < 2 {
				t.Fatalf("the table above line %d has no row", i+1)
			}
			for _, row := range rows[1:] {
				values := cells(row)
				if len(values) != len(names) || strings.Contains(strings.Join(names, ""), "$") {
					t.Fatalf("above line %d: a row has %d cells, and there are %d columns: %s", i+1, len(values), len(names), row)
				}
				var pairs []string
				for k, name := range names {
					if !strings.Contains(strings.Join(texts, "\n"), "$"+name) {
						t.Fatalf("above line %d: no line has $%s", i+1, name)
					}
					pairs = append(pairs, "$"+name, values[k])
				}
				cases = append(cases, lines(texts, first, row, strings.NewReplacer(pairs...)))
			}
			texts, rows, first = nil, nil, i+2
		}
	}
	return cases
}

// cells splits a row of a table.
func cells(row string) []string {
	all := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// lines splits the lines of a case into words, with the values of a row in it. <NAME> is the ID of a container.
func lines(texts []string, first int, row string, values *strings.Replacer) (all []line) {
	for i, text := range texts {
		for _, part := range strings.Split(values.Replace(text), ";") {
			l := line{at: first + i, row: row, indented: strings.HasPrefix(text, " "), words: strings.Fields(part)}
			for k, w := range l.words {
				for before, rest, ok := strings.Cut(w, "<"); ok; before, rest, ok = strings.Cut(w, "<") {
					name, after, _ := strings.Cut(rest, ">")
					w = before + gctest.ContainerID(name) + after
				}
				l.words[k] = w
			}
			if len(l.words) > 0 {
				all = append(all, l)
			}
		}
	}
	return all
}
