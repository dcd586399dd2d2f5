// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testFiles are the test files of a package. To compile all of them takes longer than a few
// tests, so each guard's tests are built only with the files that they need.
type testFiles []testFile

type testFile struct {
	path           string
	declares, uses map[string]bool // names of the package; "methods of T" stands for the methods of type T
}

func parseTests(t *testing.T, dir string) (all testFiles) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := testFile{path, make(map[string]bool), make(map[string]bool)}
		for _, d := range parsed.Decls {
			f.declare(d)
		}
		for _, id := range parsed.Unresolved { // in this file
			f.uses[id.Name] = true
		}
		all = append(all, f)
	}
	return all
}

// declare adds the package-level names of a declaration.
func (f *testFile) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			f.declares[d.Name.Name] = true
		} else {
			f.declares["methods of "+receiver(d)] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				f.declares[spec.Name.Name], f.uses["methods of "+spec.Name.Name] = true, true
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					f.declares[name.Name] = true
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(fn *ast.FuncDecl) (name string) {
	ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return true
	})
	return name
}

// unneeded returns the files that a space-separated list of tests does not use, neither
// directly nor indirectly.
func (all testFiles) unneeded(tests string) (paths []string) {
	needed := make([]bool, len(all))
	for want := append(strings.Fields(tests), "TestMain"); len(want) > 0; want = want[1:] {
		for i, f := range all {
			if f.declares[want[0]] && !needed[i] {
				needed[i] = true
				for name := range f.uses {
					want = append(want, name)
				}
			}
		}
	}
	for i, f := range all {
		if !needed[i] {
			paths = append(paths, f.path)
		}
	}
	slices.Sort(paths)
	return paths
}
