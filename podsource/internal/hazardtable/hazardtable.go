// SPDX-License-Identifier: Apache-2.0

// Package hazardtable makes the table of a source's hazards, of what its package
// says already:
//
//   - which hazards it has tests for, by their names: TestHazard55NodeNotHeardOf.
//   - what guards against each: the last paragraph of the test's comment, which
//     begins with "Guard:". Names in brackets, as in a doc link, must be declared
//     in the package, or be those of another: [Source.Pods], [podsource.Require].
//   - what the source can't see: the part "What it cannot see" of the package's
//     comment, block by block, beside the hazards that a block names by number.
//
// A package has it in one test:
//
//	func TestHazardTable(t *testing.T) { hazardtable.Check(t, "servertest") }
package hazardtable

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// File is the table's name in the directory of the package.
const File = "hazards.md"

const head = `<!-- written by: go test -run TestHazardTable -update -->

# What this source was tested against

The hazards are those of gc/testdata/hazards.txt in this repository: cases in which a collector released an address in use, or
kept a leak. Without its guard the test fails. What the source cannot see is for another source to cover; beside "-" it belongs to no
hazard with a test here.

| hazard | test | guard | cannot see |
|---|---|---|---|
`

var (
	update = flag.Bool("update", false, "write "+File)

	hazardTest = regexp.MustCompile(`^TestHazard(\d\d)`)
	reference  = regexp.MustCompile(`\[([\pL\d_.]+)\]`)
	hazards    = regexp.MustCompile(`hazards? (\d\d(?:(?:, | and |, and )\d\d)*)`)
	number     = regexp.MustCompile(`\d\d`)
)

// Check fails when [File] is not the table of the package in the current directory
// and of the tests in the given directories below it, and with -update writes it.
func Check(t testing.TB, below ...string) {
	t.Helper()
	for _, dir := range below {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") != "true" {
			t.Skipf("%s is a module of its own, which is not here: this is no work tree", dir)
		}
	}
	table, err := Table(".", below...)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(File, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(File); err != nil || string(got) != table {
		t.Errorf("%s is not what the tests and the package's comment say (%v); run: go test -run TestHazardTable -update", File, err)
	}
}

// A row is one test, or one block of what can't be seen.
type row struct{ hazard, test, guard, unseen string }

// Table returns the table of the package in dir, and of the tests in the
// directories below it.
func Table(dir string, below ...string) (string, error) {
	var rows []row
	var blocks []string
	declared := make(map[string]bool)
	for _, d := range append([]string{""}, below...) {
		paths, err := filepath.Glob(filepath.Join(dir, d, "*.go"))
		if err != nil {
			return "", err
		}
		for _, name := range paths {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return "", err
			}
			switch {
			case strings.HasSuffix(name, "_test.go"):
				rows = append(rows, tests(file, d)...)
			case d == "":
				declare(file, declared)
				blocks = append(blocks, unseen(file)...)
			}
		}
	}
	if len(rows) == 0 || len(blocks) == 0 {
		return "", fmt.Errorf("%s has %d tests of hazards, and %d blocks under \"What it cannot see\"", dir, len(rows), len(blocks))
	}
	for _, r := range rows {
		if r.guard == "" {
			return "", fmt.Errorf("the comment of %s has no last paragraph \"Guard: [name] ...\"", r.test)
		}
		for _, name := range reference.FindAllStringSubmatch(r.guard, -1) {
			first, _, dotted := strings.Cut(name[1], ".")
			if !declared[name[1]] && (!dotted || declared[first]) {
				return "", fmt.Errorf("the guard of %s names %s, which the package does not declare", r.test, name[0])
			}
		}
	}
	return head + render(rows, blocks), nil
}

// render puts each block beside the first test of each hazard that it names.
func render(rows []row, blocks []string) string {
	for _, block := range blocks {
		named := number.FindAllString(strings.Join(hazards.FindAllString(block, -1), " "), -1)
		if named == nil {
			named = []string{"-"}
		}
		for _, n := range named {
			i := slices.IndexFunc(rows, func(r row) bool { return r.hazard == n && r.unseen == "" })
			if i < 0 {
				i, rows = len(rows), append(rows, row{hazard: n})
			}
			rows[i].unseen = block
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		// Digits come before "~".
		return cmp.Or(cmp.Compare(strings.Replace(a.hazard, "-", "~", 1), strings.Replace(b.hazard, "-", "~", 1)), cmp.Compare(a.test, b.test))
	})
	var table strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.hazard, r.test, cell(r.guard), cell(r.unseen))
	}
	return table.String()
}

// cell returns text as it stands in a table of Markdown.
func cell(text string) string {
	return strings.ReplaceAll(reference.ReplaceAllString(text, "`$1`"), "|", `\|`)
}

// tests returns a row for each test of a hazard, with the directory it is in.
func tests(file *ast.File, dir string) (rows []row) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := hazardTest.FindStringSubmatch(f.Name.Name); n != nil {
			r := row{hazard: n[1], test: path.Join(dir, f.Name.Name)}
			if paragraphs := strings.Split(strings.TrimSpace(f.Doc.Text()), "\n\n"); f.Doc != nil {
				if guard, ok := strings.CutPrefix(paragraphs[len(paragraphs)-1], "Guard: "); ok && reference.MatchString(guard) {
					r.guard = strings.Join(strings.Fields(guard), " ")
				}
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// unseen returns the blocks of text below the heading "What it cannot see" of the
// package's comment: paragraphs, and the items of lists.
func unseen(file *ast.File) (blocks []string) {
	below := false
	for _, block := range new(comment.Parser).Parse(file.Doc.Text()).Content {
		switch b := block.(type) {
		case *comment.Heading:
			below = text(&comment.Paragraph{Text: b.Text}) == "What it cannot see"
		case *comment.Paragraph:
			if below {
				blocks = append(blocks, text(b))
			}
		case *comment.List:
			for _, item := range b.Items {
				if below {
					blocks = append(blocks, text(item.Content...))
				}
			}
		}
	}
	return blocks
}

func text(blocks ...comment.Block) string {
	return strings.Join(strings.Fields(string((&comment.Printer{TextWidth: -1}).Text(&comment.Doc{Content: blocks}))), " ")
}

// declare notes what a file declares: F, T.Method and T.Field.
func declare(file *ast.File, names map[string]bool) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			names[strings.TrimPrefix(receiver(f)+"."+f.Name.Name, ".")] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch s := n.(type) {
		case *ast.FuncDecl:
			return false
		case *ast.ValueSpec:
			for _, name := range s.Names {
				names[name.Name] = true
			}
		case *ast.TypeSpec:
			names[s.Name.Name] = true
			if body, ok := s.Type.(*ast.StructType); ok {
				for _, field := range body.Fields.List {
					for _, name := range field.Names {
						names[s.Name.Name+"."+name.Name] = true
					}
				}
			}
		}
		return true
	})
}

// receiver returns the name of the type of which f is a method, or "".
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	expr := f.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	name, ok := expr.(*ast.Ident)
	if !ok {
		return ""
	}
	return name.Name
}
