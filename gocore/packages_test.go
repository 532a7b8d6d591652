// Package gocore_test checks the imports: each package imports only packages of lower layers.
package gocore_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// packages in the order of their layers: each imports only those before it. A subpackage
// (transport/mem) counts as its parent.
var packages = []string{"fault", "latch", "pages", "trace", "wire", "codec", "reduce", "plan", "balance", "aggregate", "store", "transport", "van", "cluster", "ps", "kv", "metrics", "node"}

// onlyIn maps an import that reaches outside the process to the packages that may have it.
var onlyIn = map[string][]string{
	"golang.org/x/sys/unix":     {"latch", "pages", "transport", "node"},
	"github.com/pebbe/zmq4":     {"van"},
	"net":                       {"transport", "van", "cluster", "metrics", "node"},
	"runtime/cgo":               {},
	"golang.org/x/sys/cpu":      {"reduce"},
	"C":                         {},
	"os":                        {"node"},
	"github.com/go-python/gopy": {},
}

func TestPackagesImportOnlyDownwards(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name, _, nested := strings.Cut(path, "/")
		if !nested || !slices.Contains(packages, name) {
			t.Errorf("%s is in no package of the list", path)
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		for _, spec := range parsed.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if allowed, limited := onlyIn[imported]; limited && !slices.Contains(allowed, name) {
				t.Errorf("%s imports %s, which only %v may import", path, imported, allowed)
			}
			other, ours := strings.CutPrefix(imported, "fptps/gocore/")
			if !ours {
				continue
			}
			other, _, _ = strings.Cut(other, "/")
			if slices.Index(packages, other) > slices.Index(packages, name) {
				t.Errorf("%s imports %s, a package of a higher layer", path, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < len(packages) {
		t.Errorf("only %d files were checked", files)
	}
}
