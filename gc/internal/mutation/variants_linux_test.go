// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
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

// variants has the variants of a package, and its files with the switches.
type variants struct {
	all   []variant
	files map[string][]byte // by their paths

	paths   []string // of the files
	parsed  []*ast.File
	fset    *token.FileSet
	info    *types.Info
	pkg     *types.Package
	seen    map[string]int
	content []byte // of the current file
	edits   []edit
	in      string // the current function
	origin  string // the statement before the current check of an error

	functions, changed int // all functions, and those with a variant
}

// An edit inserts text. At one offset, ends come before beginnings. An inner edit ends before
// an outer one, and begins after it.
type edit struct {
	offset int
	text   string
	ends   bool
	length int // of the code that it belongs to
	n      int // the order of edits of the same code
}

// makeVariants makes the variants of the package in a directory below the root of the
// repository.
func makeVariants(t *testing.T, dir string) *variants {
	t.Helper()
	v := readPackage(t, dir)
	v.eachFile(t, func(path string, f *ast.File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				before := len(v.all)
				v.in = functionName(fn)
				v.function(fn)
				if v.functions++; len(v.all) > before {
					v.changed++
				}
			}
		}
		v.files[path] = v.edited()
	})
	v.files[filepath.Join(filepath.Dir(v.paths[0]), "mutant_switches.go")] = []byte(strings.Replace(switches, "PACKAGE", v.pkg.Name(), 1))
	return v
}

// readPackage reads and type-checks a package, without making variants.
func readPackage(t *testing.T, dir string) *variants {
	t.Helper()
	v := &variants{files: make(map[string][]byte), fset: token.NewFileSet(), seen: make(map[string]int)}
	exports := make(map[string]string)
	for line := range strings.Lines(goList(t, dir, "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}")) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	v.paths = strings.Fields(goList(t, dir, "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}} {{end}}`))
	for _, path := range v.paths {
		f, err := parser.ParseFile(v.fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		v.parsed = append(v.parsed, f)
	}
	v.info = &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object)}
	imports := importer.ForCompiler(v.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	config := types.Config{Importer: imports}
	pkg, err := config.Check(dir, v.fset, v.parsed, v.info)
	if err != nil {
		t.Fatalf("type-checking %s: %v", dir, err)
	}
	v.pkg = pkg
	return v
}

// eachFile calls f with each file, without edits.
func (v *variants) eachFile(t *testing.T, f func(path string, file *ast.File)) {
	t.Helper()
	for i, file := range v.parsed {
		content, err := os.ReadFile(v.paths[i])
		if err != nil {
			t.Fatal(err)
		}
		v.content, v.edits = content, nil
		f(v.paths[i], file)
	}
}

// functionName returns the name of a function in keys: a method has its type's name before it.
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return receiver(fn) + "." + fn.Name.Name
}

// ownModule reports whether a package belongs to another module than the root's. Only the
// workspace has the requirements of such a module.
func ownModule(t *testing.T, dir string) bool {
	t.Helper()
	for ; dir != "." && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root(t), dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// environ returns the environment of go commands for a package.
func environ(t *testing.T, dir string) []string {
	t.Helper()
	if ownModule(t, dir) {
		return append(os.Environ(), "GOWORK=")
	}
	return os.Environ()
}

func goList(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"list"}, args...), "./"+dir)...)
	cmd.Dir, cmd.Env = root(t), environ(t, dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	return string(out)
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
	return string(v.content[v.offset(n.Pos()):v.offset(n.End())])
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
			b.Write(v.content[from:v.offset(id.Pos())])
			b.WriteByte('_')
			from = v.offset(id.End())
		}
		return true
	})
	b.Write(v.content[from:v.offset(end)])
	shape := b.String()
	if !strings.ContainsFunc(shape, unicode.IsLetter) {
		shape = string(v.content[v.offset(code.Pos()):v.offset(end)])
	}
	return strings.Join(strings.Fields(shape), " ")
}

// wrap inserts text before and after code.
func (v *variants) wrap(code ast.Node, before, after string) {
	from, to := v.offset(code.Pos()), v.offset(code.End())
	n := len(v.edits)
	v.edits = append(v.edits, edit{from, before, false, to - from, n}, edit{to, after, true, to - from, n})
}

func (v *variants) insert(at token.Pos, text string) {
	v.edits = append(v.edits, edit{v.offset(at), text, false, 0, len(v.edits)})
}

// edited returns the file with all edits. Of two around the same code the later one is the
// inner one.
func (v *variants) edited() []byte {
	slices.SortStableFunc(v.edits, func(a, b edit) int {
		switch {
		case a.offset != b.offset:
			return a.offset - b.offset
		case a.ends != b.ends && a.ends:
			return -1
		case a.ends != b.ends:
			return 1
		case a.ends:
			return cmp.Or(a.length-b.length, b.n-a.n)
		}
		return cmp.Or(b.length-a.length, a.n-b.n)
	})
	var out []byte
	from := 0
	for _, e := range v.edits {
		out = append(append(out, v.content[from:e.offset]...), e.text...)
		from = e.offset
	}
	return append(out, v.content[from:]...)
}
