package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// single are the packages that start no goroutine. make test-unit runs them without the race detector.
var single = []string{"internal/config", "internal/ipam", "internal/lb", "internal/plan"}

func TestSingle(t *testing.T) {
	for _, dir := range single {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if _, ok := n.(*ast.GoStmt); ok {
					t.Errorf("%s starts a goroutine: remove its package from PURE in the Makefile", name)
				}
				return true
			})
		}
	}
}
