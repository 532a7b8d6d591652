// Package gocore_test holds the rooms in their order.
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

// rooms, each of which imports only those before it. The parts of a room
// (transport/mem) count as the room.
var rooms = []string{"fault", "latch", "wire", "codec", "reduce", "plan", "aggregate", "store", "transport", "van", "cluster", "ps", "kv", "node"}

// onlyIn says which rooms may touch the outside.
var onlyIn = map[string][]string{
	"golang.org/x/sys/unix":     {"latch", "transport", "node"},
	"github.com/pebbe/zmq4":     {"van"},
	"net":                       {"transport", "van", "cluster", "node"},
	"runtime/cgo":               {},
	"golang.org/x/sys/cpu":      {"reduce"},
	"C":                         {},
	"os":                        {"node"},
	"github.com/go-python/gopy": {},
}

func TestRoomsImportOnlyDownwards(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		room, _, inRoom := strings.Cut(path, "/")
		if !inRoom || !slices.Contains(rooms, room) {
			t.Errorf("%s is in no room", path)
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		for _, spec := range parsed.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if allowed, limited := onlyIn[imported]; limited && !slices.Contains(allowed, room) {
				t.Errorf("%s imports %s, which is for %v", path, imported, allowed)
			}
			other, ours := strings.CutPrefix(imported, "fptps/gocore/")
			if !ours {
				continue
			}
			other, _, _ = strings.Cut(other, "/")
			if slices.Index(rooms, other) > slices.Index(rooms, room) {
				t.Errorf("%s imports %s, a room above its own", path, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < len(rooms) {
		t.Errorf("only %d files were looked at", files)
	}
}
