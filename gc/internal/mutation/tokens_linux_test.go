// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"fmt"
	"go/ast"
	"go/token"
	"iter"
	"path/filepath"
	"slices"
	"testing"
)

// gremlinsKinds are the default kinds of mutants of gremlins, their names in keys, and their
// changes of operators. INVERT_NEGATIVES is left out: each of its mutants is also one of
// ARITHMETIC_BASE.
var gremlinsKinds = []struct {
	name, kind string
	becomes    map[token.Token]token.Token
}{
	{"CONDITIONALS_BOUNDARY", boundary, map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}},
	{"CONDITIONALS_NEGATION", "negation", map[token.Token]token.Token{
		token.EQL: token.NEQ, token.NEQ: token.EQL,
		token.LSS: token.GEQ, token.LEQ: token.GTR, token.GTR: token.LEQ, token.GEQ: token.LSS}},
	{"ARITHMETIC_BASE", "arithmetic", map[token.Token]token.Token{
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL}},
	{"INCREMENT_DECREMENT", "arithmetic", map[token.Token]token.Token{token.INC: token.DEC, token.DEC: token.INC}},
}

// A tokenMutant is a mutant of gremlins: it has another operator in one place.
type tokenMutant struct {
	key     string // like that of a variant; outside of functions with the declared name
	at      string // as gremlins reports it: kind, file, line, column
	path    string
	content []byte // of the file
	offset  int    // of the operator in it
	is, be  string
}

// mutated returns the content of the file with the other operator.
func (m *tokenMutant) mutated() []byte {
	return slices.Concat(m.content[:m.offset], []byte(m.be), m.content[m.offset+len(m.is):])
}

// tokenMutants returns a package and its mutants, in the files for this system.
func tokenMutants(t *testing.T, dir string) (v *variants, all []tokenMutant) {
	t.Helper()
	v = readPackage(t, dir)
	v.eachFile(t, func(path string, f *ast.File) {
		for in, code := range declarations(f) {
			v.in = in
			ast.Inspect(code, func(n ast.Node) bool {
				op, at := operator(n)
				for _, k := range gremlinsKinds {
					if to, ok := k.becomes[op]; ok {
						i := v.numbered(k.kind, n, v.shape(n, n.End())) - 1
						p := v.fset.Position(at)
						all = append(all, tokenMutant{v.all[i].key, fmt.Sprintf("%s %s:%d:%d", k.name, filepath.Base(path), p.Line, p.Column),
							path, v.content, p.Offset, op.String(), to.String()})
					}
				}
				return true
			})
		}
	})
	return v, all
}

// declarations returns the declarations of a file that may have operators, by name: functions,
// constants and variables. One of several names has the first.
func declarations(f *ast.File) iter.Seq2[string, ast.Node] {
	return func(yield func(string, ast.Node) bool) {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if !yield(functionName(d), d) {
					return
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.ValueSpec); ok && !yield(s.Names[0].Name, s) {
						return
					}
				}
			}
		}
	}
}

// operator returns the operator of a node, and its position.
func operator(n ast.Node) (token.Token, token.Pos) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return n.Op, n.OpPos
	case *ast.UnaryExpr:
		return n.Op, n.OpPos
	case *ast.IncDecStmt:
		return n.Tok, n.TokPos
	}
	return token.ILLEGAL, token.NoPos
}
