// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what was found into the tables")

// suite is the module with the incidents and the node that they run on.
const suite = "../e2e/containerd"

// The tables whose rows are written by tests.
const (
	tableFile       = "incidents.md"
	conformanceFile = "conformance.md"
)

// An incident is a row of the table, as its test wrote it.
type incident struct {
	Issues   []string // such as "containerd/containerd#12130"
	Leak     string
	Advice   string
	Alone    string
	Ours     string
	Versions []string
}

// name returns the first issue as it is in the test's name, such as containerd12130.
func (i incident) name() string {
	_, short, _ := strings.Cut(i.Issues[0], "/")
	return notInNames.ReplaceAllString(short, "")
}

var notInNames = regexp.MustCompile(`\W`)

// row returns a line of the table.
func (i incident) row() string {
	var links []string
	for _, issue := range i.Issues {
		repository, number, _ := strings.Cut(issue, "#")
		_, short, _ := strings.Cut(issue, "/")
		links = append(links, fmt.Sprintf("[%s](https://github.com/%s/issues/%s)", short, repository, number))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", strings.Join(links, ", "), i.Leak, i.Advice, i.Alone, i.Ours, strings.Join(i.Versions, ", "))
}

// compare fails unless the table has the row, or writes the row with -update.
func compare(t *testing.T, found incident) {
	t.Helper()
	tbl := table(t, tableFile)
	row := found.row()
	t.Log(row)
	at := slices.IndexFunc(tbl.rows, func(r string) bool { return nameOf(r) == found.name() })
	switch {
	case at < 0:
		tbl.rows = append(tbl.rows, row)
	case tbl.rows[at] != row:
		tbl.rows[at] = row
	default:
		return
	}
	order := tests(t, ".")
	slices.SortStableFunc(tbl.rows, func(a, b string) int { return slices.Index(order, nameOf(a)) - slices.Index(order, nameOf(b)) })
	tbl.write(t)
}

// compareConformance does the same with all rows of the other table.
func compareConformance(t *testing.T, rows []string) {
	t.Helper()
	tbl := table(t, conformanceFile)
	if !slices.Equal(tbl.rows, rows) {
		tbl.rows = rows
		tbl.write(t)
	}
}

// A rowFile is a file with one table.
type rowFile struct {
	file          string
	before, after string
	rows          []string
}

var tableHead = regexp.MustCompile(`(?m)^\|[-|]+\|\n`)

// table reads a file. If it has several tables, the last one counts.
func table(t *testing.T, file string) (f rowFile) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	heads := tableHead.FindAllIndex(content, -1)
	if heads == nil {
		t.Fatalf("%s has no table", file)
	}
	head := heads[len(heads)-1]
	f = rowFile{file: file, before: string(content[:head[1]]), after: string(content[head[1]:])}
	for strings.HasPrefix(f.after, "| ") {
		row, rest, _ := strings.Cut(f.after, "\n")
		f.rows, f.after = append(f.rows, row), rest
	}
	return f
}

// write writes the file with -update. Without it, changed rows are an error.
func (f rowFile) write(t *testing.T) {
	t.Helper()
	if !*update {
		t.Errorf("%s has not what was found; -update writes it:\n%s", f.file, strings.Join(f.rows, "\n"))
		return
	}
	if err := os.WriteFile(f.file, []byte(f.before+strings.Join(f.rows, "\n")+"\n"+f.after), 0o644); err != nil {
		t.Fatal(err)
	}
}

var firstIssue = regexp.MustCompile(`^\| \[(.+?)\]`)

// nameOf returns the name of a row's incident.
func nameOf(row string) string {
	m := firstIssue.FindStringSubmatch(row)
	if m == nil {
		return ""
	}
	return notInNames.ReplaceAllString(m[1], "")
}

var testFunc = regexp.MustCompile(`(?m)^func TestIncident_(\w+)\(`)

// tests returns the incidents with a test in the directory, in the order of its files.
func tests(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(content), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// TestTable: the table has exactly one row for each incident, in the order of the tests, and each
// can be run.
func TestTable(t *testing.T) {
	var named []string
	for _, row := range table(t, tableFile).rows {
		named = append(named, nameOf(row))
	}
	want := tests(t, ".")
	if !slices.Equal(named, want) {
		t.Errorf("%s has rows for %v, and there are tests for %v", tableFile, named, want)
	}
	there := tests(t, suite)
	slices.Sort(want)
	slices.Sort(there)
	if !slices.Equal(there, want) {
		t.Errorf("incidents are reproduced for %v, and run here for %v", there, want)
	}
}
