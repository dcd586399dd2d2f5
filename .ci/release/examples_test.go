// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A listed is the go command's description of a package.
type listed struct {
	ImportPath, Dir, Export   string
	TestGoFiles, XTestGoFiles []string
}

// list returns packages and those that they import, with their export data.
func list(t *testing.T, dir, work string, patterns ...string) map[string]*listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{
		"list", "-deps", "-test", "-export", "-json=ImportPath,Dir,Export,TestGoFiles,XTestGoFiles", "--"}, patterns...)...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), "GOWORK="+work, "GOFLAGS=-mod=readonly"), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	found := make(map[string]*listed)
	for d := json.NewDecoder(&stdout); ; {
		p := &listed{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[p.ImportPath] = p
	}
}

// A catalog has the exported names of packages: package.Name or package.Type.Member.
type catalog struct {
	names map[types.Object]string
	used  map[types.Object]bool // in the body of an Example
}

// examplesOf reads the packages from their export data, and their Examples.
func examplesOf(t *testing.T, all map[string]*listed, packages []string) catalog {
	t.Helper()
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if p := all[path]; p != nil && p.Export != "" {
			return os.Open(p.Export)
		}
		return nil, fmt.Errorf("%s has no export data", path)
	})
	c := catalog{make(map[types.Object]string), make(map[types.Object]bool)}
	for _, path := range packages {
		p, err := imports.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		c.add(p)
	}
	for _, path := range packages {
		for _, files := range [][]string{all[path].TestGoFiles, all[path].XTestGoFiles} {
			c.read(t, fset, imports, all[path], files)
		}
	}
	return c
}

// add adds the exported names of a package, with the fields and methods of its types. Promoted
// ones belong to the embedded type.
func (c catalog) add(p *types.Package) {
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		name = p.Name() + "." + name
		c.names[object] = name
		named, ok := object.Type().(*types.Named)
		if _, is := object.(*types.TypeName); !ok || !is {
			continue
		}
		var members []types.Object
		for m := range named.Methods() {
			members = append(members, m)
		}
		switch u := named.Underlying().(type) {
		case *types.Struct:
			for f := range u.Fields() {
				members = append(members, f)
			}
		case *types.Interface:
			for m := range u.ExplicitMethods() {
				members = append(members, m)
			}
		}
		for _, m := range members {
			if m.Exported() {
				c.names[m] = name + "." + m.Name()
			}
		}
	}
}

// read adds the names that Examples in the test files of a package use.
func (c catalog) read(t *testing.T, fset *token.FileSet, imports types.Importer, p *listed, names []string) {
	t.Helper()
	var files []*ast.File
	var bodies []*ast.BlockStmt
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Example") {
				bodies = append(bodies, f.Body)
			}
		}
	}
	if len(bodies) == 0 {
		return
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object), Types: make(map[ast.Expr]types.TypeAndValue)}
	// Ignore errors: test files may use names that other test files declare. Examples don't.
	conf := types.Config{Importer: imports, Error: func(error) {}}
	_, _ = conf.Check(p.ImportPath+"_test", fset, files, info)
	inExample := func(n ast.Node) bool {
		return slices.ContainsFunc(bodies, func(b *ast.BlockStmt) bool { return b.Pos() <= n.Pos() && n.End() <= b.End() })
	}
	for ident, object := range info.Uses {
		if inExample(ident) {
			c.used[object] = true
		}
	}
	for expr, value := range info.Types {
		if inExample(expr) {
			c.useType(value.Type)
		}
	}
}

// useType marks the named type of a value, or of its elements, as used.
func (c catalog) useType(t types.Type) {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		c.used[t.Obj()] = true
	case *types.Pointer:
		c.useType(t.Elem())
	case *types.Slice:
		c.useType(t.Elem())
	case *types.Map:
		c.useType(t.Key())
		c.useType(t.Elem())
	case *types.Tuple:
		for v := range t.Variables() {
			c.useType(v.Type())
		}
	}
}

// throughInterface are methods that users do not call directly. fmt, encoding/json,
// controller-runtime's manager, Prometheus's registry and podsource.Union call them.
var throughInterface = []string{"String", "MarshalJSON", "Start", "NeedLeaderElection", "Describe", "Collect", "Pods", "Rank"}

// unshown returns the names that no Example uses. These need no use of their own:
//   - a type, if an Example has a value of it;
//   - a constant of an enumeration, if an Example uses another one of it;
//   - a constant DefaultX, if an Example sets Options.X;
//   - a method of throughInterface, if an Example uses its type.
func (c catalog) unshown() (missing []string) {
	shown := make(map[string]bool)
	enumerations := make(map[types.Type]bool)
	for object, name := range c.names {
		if c.used[object] {
			shown[name] = true
			enumerations[object.Type()] = true
		}
	}
	for object, name := range c.names {
		if shown[name] {
			continue
		}
		switch object := object.(type) {
		case *types.Const:
			_, isNamed := object.Type().(*types.Named)
			p, ident, _ := strings.Cut(name, ".")
			option, isDefault := strings.CutPrefix(ident, "Default")
			if isNamed && object.Type().(*types.Named).Obj().Pkg() == object.Pkg() && enumerations[object.Type()] ||
				isDefault && shown[p+".Options."+option] {
				continue
			}
		case *types.Func:
			receiver := strings.TrimSuffix(name, "."+object.Name())
			if slices.Contains(throughInterface, object.Name()) && shown[receiver] {
				continue
			}
		}
		missing = append(missing, name)
	}
	slices.Sort(missing)
	return missing
}

// An Example, which readers see on pkg.go.dev, uses every exported name of the library.
func TestExamples(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	r, err := openRepo(root)
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for _, m := range r.modules {
		if !m.released {
			continue
		}
		found, err := (&rehearsal{repo: r}).packages(m)
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, found...)
	}
	c := examplesOf(t, list(t, root, filepath.Join(root, "go.work"), packages...), packages)
	if missing := c.unshown(); len(missing) > 0 {
		t.Errorf("no Example uses %d exported names: write one, or unexport or delete the name\n%s", len(missing), strings.Join(missing, "\n"))
	}
	if len(packages) < 15 || len(c.names) < 350 {
		t.Errorf("found only %d names in %d packages; the test may miss some", len(c.names), len(packages))
	}
}

// unshown returns exactly the names without a use in an Example.
func TestUnshown(t *testing.T) {
	r, err := made(t, map[string]string{
		"m.go": `package m

import "time"

const DefaultWait, DefaultSize = time.Second, 1

type Color string

const (
	Red  Color = "red"
	Blue Color = "blue"
)

type Kind string

const Large Kind = "large"

type Options struct {
	Wait time.Duration
	Size int
}

type Thing struct{ Name, Unused string }

func New(Options) *Thing { return nil }

func (*Thing) String() string { return "" }
func (*Thing) Lost()          {}

type Hidden struct{}

func (Hidden) String() string { return "" }

func InTest() {}
`,
		"example_test.go": `package m_test

import (
	"fmt"
	"testing"
	"time"

	"example.com/m"
)

func ExampleNew() {
	fmt.Println(m.New(m.Options{Wait: time.Second}).Name, m.Red)
}

func TestX(t *testing.T) { m.InTest() }
`,
	})
	if err != nil {
		t.Fatal(err)
	}
	got := examplesOf(t, list(t, r.root, "off", "example.com/m"), []string{"example.com/m"}).unshown()
	want := []string{"m.DefaultSize", "m.Hidden", "m.Hidden.String", "m.InTest", "m.Kind", "m.Large", "m.Options.Size", "m.Thing.Lost", "m.Thing.Unused"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
