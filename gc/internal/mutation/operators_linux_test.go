// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// The kinds of changes, as the keys name them.
const (
	errorDropped   = "error dropped"   // a check finds no error, or nil is returned or joined instead of the error
	firstOnly      = "first only"      // a loop ends after one iteration, or a function of slices gets one element
	boundary       = "boundary"        // < becomes <= and so on; min and max return one of their arguments
	contextIgnored = "context ignored" // a context is never done, or has no time limit
	removed        = "removed"         // a call, a deferred call or an assignment is removed
	never, always_ = "never", "always" // a part of a condition is false, or true
)

// function makes the variants of a function.
func (v *variants) function(sig types.Type, body *ast.BlockStmt) {
	inCondition := make(map[ast.Expr]bool)
	stack := []ast.Node{body}
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		parent := stack[len(stack)-1]
		if f, ok := n.(*ast.FuncLit); ok {
			v.function(v.info.TypeOf(f), f.Body)
			return false
		}
		stack = append(stack, n)
		switch n := n.(type) {
		case *ast.IfStmt:
			v.origin = v.before(parent, n)
			v.condition(n.Cond, inCondition)
			v.origin = ""
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						v.condition(e, inCondition)
					}
				}
			}
		case *ast.ReturnStmt:
			v.returned(n, sig.(*types.Signature).Results(), inCondition)
		case *ast.BinaryExpr:
			if (n.Op == token.LAND || n.Op == token.LOR) && !inCondition[n] {
				v.condition(n, inCondition)
			}
			v.comparison(n)
		case *ast.CallExpr:
			v.call(n)
		case *ast.RangeStmt:
			v.loop(parent, n, n.Body)
		case *ast.ForStmt:
			if n.Cond != nil { // else the compiler may miss a return after the loop
				v.loop(parent, n, n.Body)
			}
		case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt, *ast.AssignStmt, *ast.IncDecStmt, *ast.SendStmt:
			v.statement(parent, n.(ast.Stmt))
		}
		return true
	})
}

// before returns the init statement of an if statement, or else the assignment before it.
func (v *variants) before(parent ast.Node, s *ast.IfStmt) string {
	if s.Init != nil {
		return v.shape(s.Init, s.Init.End()) + "; "
	}
	var list []ast.Stmt
	switch parent := parent.(type) {
	case *ast.BlockStmt:
		list = parent.List
	case *ast.CaseClause:
		list = parent.Body
	}
	if i := slices.Index(list, ast.Stmt(s)); i > 0 {
		if a, ok := list[i-1].(*ast.AssignStmt); ok {
			return v.shape(a, a.End()) + "; "
		}
	}
	return ""
}

// condition makes each part of a condition false, and true.
func (v *variants) condition(e ast.Expr, done map[ast.Expr]bool) {
	done[e] = true
	switch x := e.(type) {
	case *ast.ParenExpr:
		v.condition(x.X, done)
		return
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			v.condition(x.X, done)
			return
		}
	case *ast.BinaryExpr:
		if x.Op == token.LAND || x.Op == token.LOR {
			v.condition(x.X, done)
			v.condition(x.Y, done)
			return
		}
		if v.info.Types[x.Y].IsNil() && isError(v.info.TypeOf(x.X)) {
			n := v.numbered(errorDropped, e, v.origin+v.shape(e, e.End()))
			if x.Op == token.NEQ {
				v.wrap(e, fmt.Sprintf("(!mutant(%d) && (", n), "))")
			} else {
				v.wrap(e, fmt.Sprintf("(mutant(%d) || (", n), "))")
			}
			return
		}
	}
	if v.info.Types[e].Value != nil || !types.Identical(types.Default(v.info.TypeOf(e)), types.Typ[types.Bool]) {
		return
	}
	v.wrap(e, fmt.Sprintf("(mutant(%d) || !mutant(%d) && (", v.number(always_, e), v.number(never, e)), "))")
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// returned drops errors that are returned, and changes conditions that are.
func (v *variants) returned(r *ast.ReturnStmt, results *types.Tuple, done map[ast.Expr]bool) {
	if len(r.Results) != results.Len() { // the results of a call
		return
	}
	for i, e := range r.Results {
		switch {
		case v.info.Types[e].IsNil():
		case isError(results.At(i).Type()):
			v.dropped(e, r)
		case types.Identical(v.info.TypeOf(e), types.Typ[types.Bool]):
			v.condition(e, done)
		}
	}
}

func (v *variants) dropped(e ast.Expr, in ast.Node) {
	v.wrap(e, fmt.Sprintf("mutantOr[error](%d, nil, ", v.number(errorDropped, in)), ")")
}

// comparison moves the boundary of a comparison.
func (v *variants) comparison(e *ast.BinaryExpr) {
	if v.info.Types[e].Value != nil || v.hasFunc(e) {
		return
	}
	equal := fmt.Sprintf("(%s) == (%s)", v.text(e.X), v.text(e.Y))
	switch e.Op {
	case token.LSS, token.GTR:
		v.wrap(e, "((", fmt.Sprintf(") || mutant(%d) && %s)", v.number(boundary, e), equal))
	case token.LEQ, token.GEQ:
		v.wrap(e, "((", fmt.Sprintf(") && !(mutant(%d) && %s))", v.number(boundary, e), equal))
	}
}

func (v *variants) hasFunc(e ast.Expr) bool { return strings.Contains(v.text(e), "func(") }

// call changes the arguments of a call: contexts, joined errors, times, slices, and the
// arguments of min and max.
func (v *variants) call(c *ast.CallExpr) {
	name := ""
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		if _, ok := v.info.Uses[fun].(*types.Builtin); ok {
			name = fun.Name
		}
	case *ast.SelectorExpr:
		if pkg, ok := fun.X.(*ast.Ident); ok {
			if p, ok := v.info.Uses[pkg].(*types.PkgName); ok {
				name = p.Imported().Path() + "." + fun.Sel.Name
				break
			}
		}
		if isNamed(v.info.TypeOf(fun.X), "context", "Context") {
			v.ignored(fun.X, c)
		}
		if isNamed(v.info.TypeOf(fun.X), "time", "Time") && (fun.Sel.Name == "Before" || fun.Sel.Name == "After") && !v.hasFunc(c) {
			v.wrap(c, "(", fmt.Sprintf(" || mutant(%d) && (%s).Equal(%s))", v.number(boundary, c), v.text(fun.X), v.text(c.Args[0])))
		}
	}
	for i, arg := range c.Args {
		t := v.info.TypeOf(arg)
		switch {
		case isNamed(t, "context", "Context"):
			v.ignored(arg, c)
		case name == "errors.Join" && isError(t):
			v.dropped(arg, c)
		case name == "context.WithTimeout" && i == 1:
			v.wrap(arg, fmt.Sprintf("mutantOr(%d, 1<<62, ", v.number(contextIgnored, c)), ")")
		case strings.HasPrefix(name, "slices.") && v.isSlice(arg):
			v.wrap(arg, fmt.Sprintf("mutantFirst(%d, ", v.number(firstOnly, c)), ")")
		}
	}
	if (name == "min" || name == "max") && len(c.Args) == 2 && v.info.Types[c].Value == nil {
		first, second := v.text(c.Args[0]), v.text(c.Args[1])
		v.wrap(c, fmt.Sprintf("mutantOr(%d, %s, mutantOr(%d, %s, ", v.number(boundary, c), first, v.number(boundary, c), second), "))")
	}
}

func (v *variants) ignored(ctx ast.Expr, in *ast.CallExpr) {
	v.wrap(ctx, fmt.Sprintf("mutantContext(%d, ", v.number(contextIgnored, in)), ")")
}

func isNamed(t types.Type, path, name string) bool {
	n, ok := t.(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path && n.Obj().Name() == name
}

// isSlice reports whether an argument is a slice other than a composite literal.
func (v *variants) isSlice(e ast.Expr) bool {
	_, is := v.info.TypeOf(e).Underlying().(*types.Slice)
	_, spelledOut := e.(*ast.CompositeLit)
	return is && !spelledOut
}

// loop ends a loop after one iteration.
func (v *variants) loop(parent, loop ast.Node, body *ast.BlockStmt) {
	whole := loop
	if label, ok := parent.(*ast.LabeledStmt); ok {
		whole = label
	}
	n := v.numbered(firstOnly, loop, v.shape(loop, body.Lbrace))
	v.wrap(whole, "{ mutantTimes := 0; ", "}")
	v.insert(body.Lbrace+1, fmt.Sprintf(" if mutantTimes++; mutantTimes > 1 && mutant(%d) { break }; ", n))
}

// statement removes a statement.
func (v *variants) statement(parent ast.Node, s ast.Stmt) {
	switch parent := parent.(type) {
	case *ast.BlockStmt, *ast.CaseClause:
	case *ast.CommClause:
		if parent.Comm == s {
			return
		}
	default:
		return
	}
	switch s := s.(type) {
	case *ast.ExprStmt:
		if c, ok := s.X.(*ast.CallExpr); ok {
			if id, ok := c.Fun.(*ast.Ident); ok && id.Name == "panic" {
				return // the compiler may miss a return without it
			}
		}
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE {
			return
		}
		if id, ok := s.Lhs[0].(*ast.Ident); ok && id.Name == "_" {
			return
		}
	}
	v.wrap(s, fmt.Sprintf("if !mutant(%d) { ", v.number(removed, s)), " }")
}
