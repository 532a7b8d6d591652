package fault

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

func TestCodeOf(t *testing.T) {
	lost := New(NodeLost, "worker %d died", 3)
	if lost.Error() != "worker 3 died" {
		t.Errorf("the text is %q", lost)
	}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{lost, NodeLost},
		{fmt.Errorf("while closing: %w", lost), NodeLost},
		{errors.Join(errors.New("first"), lost), NodeLost},
		{errors.New("plain"), Internal},
		{nil, Internal},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: code %s, expected %s", c.err, got, c.want)
		}
	}
}

// Codes lists every constant of type Code in the source.
func TestCodesListsEveryConstant(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []Code
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, value := range spec.Values {
				text, err := strconv.Unquote(value.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				declared = append(declared, Code(text))
			}
		}
		return true
	})
	if !slices.Equal(declared, Codes()) || len(declared) == 0 {
		t.Errorf("declared are %v, listed %v", declared, Codes())
	}
}
