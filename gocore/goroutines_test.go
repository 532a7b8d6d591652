package gocore_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// guards are the functions that turn a panic into an error.
var guards = []string{"guard", "Catch", "recover"}

// TestEveryGoroutineCatchesPanics looks at each function that starts as a goroutine: it is a guard, or calls one. A panic
// that nothing catches ends the interpreter in which the core lives. memvan is for tests.
func TestEveryGoroutineCatchesPanics(t *testing.T) {
	starts := 0
	for folder, files := range sources(t, ".", "../pybind") {
		if folder == "van/memvan" {
			continue
		}
		functions := map[string][]*ast.FuncDecl{}
		eachNode(files, func(n ast.Node) {
			if f, ok := n.(*ast.FuncDecl); ok {
				functions[f.Name.Name] = append(functions[f.Name.Name], f)
			}
		})
		guarded := func(f ast.Expr) bool {
			if literal, ok := f.(*ast.FuncLit); ok {
				return callsGuard(literal.Body)
			}
			name := nameOf(f)
			unguarded := func(f *ast.FuncDecl) bool { return !callsGuard(f.Body) }
			return slices.Contains(guards, name) || functions[name] != nil && !slices.ContainsFunc(functions[name], unguarded)
		}
		eachNode(files, func(n ast.Node) {
			f := started(n)
			if f == nil {
				return
			}
			starts++
			if !guarded(f) {
				t.Errorf("%s: a goroutine starts that catches no panic: use fault.Catch", position(n))
			}
		})
	}
	if starts < 10 {
		t.Errorf("only %d starts of goroutines were found", starts)
	}
}

// TestEveryExportedFunctionOfPybindCatchesPanics: each begins with the deferred call that makes an error of a panic.
func TestEveryExportedFunctionOfPybindCatchesPanics(t *testing.T) {
	found := 0
	eachNode(sources(t, "../pybind")["../pybind"], func(n ast.Node) {
		f, ok := n.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() || f.Type.Results.NumFields() < 2 {
			return // Version alone cannot fail
		}
		found++
		first, ok := f.Body.List[0].(*ast.DeferStmt)
		if !ok || nameOf(first.Call.Fun) != "encodeError" {
			t.Errorf("%s: %s does not begin with defer encodeError(&err)", position(f), f.Name.Name)
		}
	})
	if found < 20 {
		t.Errorf("only %d functions were found", found)
	}
}

// started gives the function that a node of the syntax starts as a goroutine, nil if it starts none.
func started(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.GoStmt:
		return n.Call.Fun
	case *ast.CallExpr:
		if name := nameOf(n.Fun); len(n.Args) > 0 && (name == "Go" || name == "AfterFunc") {
			return n.Args[len(n.Args)-1]
		}
	}
	return nil
}

func callsGuard(body *ast.BlockStmt) (calls bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && slices.Contains(guards, nameOf(call.Fun)) {
			calls = true
		}
		return true
	})
	return calls
}

// nameOf is the last name of f, a, b.f, or an instance of a generic function.
func nameOf(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.IndexExpr:
		return nameOf(f.X)
	}
	return ""
}

var set = token.NewFileSet()

func position(n ast.Node) token.Position { return set.Position(n.Pos()) }

func eachNode(files []*ast.File, f func(ast.Node)) {
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool { f(n); return true })
	}
}

// sources parses the Go files of folders and those below, without tests, by folder.
func sources(t *testing.T, folders ...string) map[string][]*ast.File {
	t.Helper()
	all := map[string][]*ast.File{}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(set, path, nil, 0)
			all[filepath.Dir(path)] = append(all[filepath.Dir(path)], parsed)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
