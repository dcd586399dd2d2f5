// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// A variant is a small change of a package's code with which some test of the package should
// fail. All variants of a package are in one binary, which selects one by its number, so that
// the package is compiled once and not once for each.
type variant struct {
	// key identifies the change: the function, the kind of change, and the code with
	// blanks for local names. It stays the same if code moves to another line or file,
	// or a local variable gets another name.
	key string
	at  string // file and line
}

// variants has the variants of a package.
type variants struct {
	all                []variant
	functions, changed int // all functions, and those with a variant

	fset          *token.FileSet
	info          *types.Info
	pkg           *types.Package
	seen          map[string]int
	content       string         // of the current file
	opens, closes map[int]string // text to insert, by its offset: before code that begins there, and after code that ends there
	in            string         // the current function
	origin        string         // the statement before the current check of an error
}

// makeVariants adds all variants to a package in the copy of the repository.
func makeVariants(t *testing.T, w workDir, dir string) *variants {
	t.Helper()
	v := &variants{fset: token.NewFileSet(), seen: make(map[string]int)}
	exports := make(map[string]string)
	var paths []string
	for line := range strings.Lines(w.golang(t, "list", "-export", "-deps", "-f",
		`{{.ImportPath}}={{.Export}}{{if not .DepOnly}}{{range .GoFiles}} {{$.Dir}}/{{.}}{{end}}{{end}}`, "./"+dir)) {
		fields := strings.Fields(line)
		path, file, _ := strings.Cut(fields[0], "=")
		exports[path] = file
		paths = append(paths, fields[1:]...)
	}
	files := make([]*ast.File, len(paths))
	for i, path := range paths {
		var err error
		if files[i], err = parser.ParseFile(v.fset, path, nil, parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
	}
	v.info = &types.Info{Types: make(map[ast.Expr]types.TypeAndValue),
		Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object)}
	export := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	config := types.Config{Importer: importer.ForCompiler(v.fset, "gc", export)}
	var err error
	if v.pkg, err = config.Check(dir, v.fset, files, v.info); err != nil {
		t.Fatalf("type-checking %s: %v", dir, err)
	}
	for i, path := range paths {
		v.content, v.opens, v.closes = read(t, path), make(map[int]string), make(map[int]string)
		for _, d := range files[i].Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				before := len(v.all)
				v.in = functionName(fn)
				v.function(v.info.Defs[fn.Name].Type(), fn.Body)
				if v.functions++; len(v.all) > before {
					v.changed++
				}
			}
		}
		write(t, path, v.edited())
	}
	write(t, w.source(dir+"/mutant_switches.go"), strings.Replace(switches, "PACKAGE", v.pkg.Name(), 1))
	return v
}

// functionName returns the name of a function in keys: a method has its type's name before it.
func functionName(fn *ast.FuncDecl) (name string) {
	if fn.Recv != nil {
		ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && name == "" {
				name = id.Name + "."
			}
			return true
		})
	}
	return name + fn.Name.Name
}

// number makes a variant of some code, and returns the number of its switch.
func (v *variants) number(kind string, code ast.Node) int {
	return v.numbered(kind, code, v.shape(code, code.End()))
}

func (v *variants) numbered(kind string, code ast.Node, shape string) int {
	const longest = 160
	if len(shape) > longest {
		shape = strings.ToValidUTF8(shape[:longest], "") + "..."
	}
	key := v.in + ": " + kind + ": " + shape
	v.seen[key]++
	if n := v.seen[key]; n > 1 {
		key = fmt.Sprintf("%s (%d)", key, n)
	}
	at := v.fset.Position(code.Pos())
	v.all = append(v.all, variant{key, fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)})
	return len(v.all) // 0 is no variant
}

func (v *variants) offset(p token.Pos) int { return v.fset.Position(p).Offset }

func (v *variants) text(n ast.Node) string {
	return v.content[v.offset(n.Pos()):v.offset(n.End())]
}

// shape returns code up to end on one line, with blanks for local names, unless it has no others.
func (v *variants) shape(code ast.Node, end token.Pos) string {
	var b strings.Builder
	from := v.offset(code.Pos())
	ast.Inspect(code, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		if id.Pos() >= end {
			return false
		}
		if local, ok := v.info.ObjectOf(id).(*types.Var); ok && !local.IsField() && local.Parent() != v.pkg.Scope() && local.Pkg() == v.pkg {
			b.WriteString(v.content[from:v.offset(id.Pos())])
			b.WriteByte('_')
			from = v.offset(id.End())
		}
		return true
	})
	b.WriteString(v.content[from:v.offset(end)])
	shape := b.String()
	if !strings.ContainsFunc(shape, unicode.IsLetter) {
		shape = v.content[v.offset(code.Pos()):v.offset(end)]
	}
	return strings.Join(strings.Fields(shape), " ")
}

// wrap inserts text before and after code. Of two around the same code the later one is the inner one.
func (v *variants) wrap(code ast.Node, before, after string) {
	v.insert(code.Pos(), before)
	v.closes[v.offset(code.End())] = after + v.closes[v.offset(code.End())]
}

func (v *variants) insert(at token.Pos, text string) { v.opens[v.offset(at)] += text }

// edited returns the file with all insertions. An inner one ends before an outer one, and begins
// after it, since functions are visited from the outside to the inside.
func (v *variants) edited() string {
	var out strings.Builder
	for i := range len(v.content) {
		out.WriteString(v.closes[i] + v.opens[i])
		out.WriteByte(v.content[i])
	}
	return out.String()
}
