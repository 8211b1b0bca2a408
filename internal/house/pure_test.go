package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pureFiles contain the decisions of packages that also have effects. They take the time and all
// input as arguments.
var pureFiles = map[string][]string{
	"internal/bfd":           {"packet.go", "session.go", "status.go", "table.go", "timers.go"},
	"internal/nodelifecycle": {"decide.go", "endpoints.go", "limit.go", "tracker.go", "verdict.go"},
	"kubectl-holdfast":       {"change.go", "move.go", "objects.go", "service.go", "snapshot.go"},
}

// pureImports are what such a file may import.
var pureImports = []string{
	"cmp", "encoding", "errors", "flag", "fmt", "io", "maps", "math", "net/netip", "reflect", "slices", "strconv", "strings", "time",
	"api/v1beta1", "internal/config", "internal/ipam", "internal/lb", "internal/plan", "k8s.io/api", "k8s.io/apimachinery",
}

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

// impure reports a file's imports beyond pureImports, and its reads of the clock.
func impure(file *ast.File) []string {
	var out []string
	for _, i := range file.Imports {
		to, _ := strconv.Unquote(i.Path.Value) // the parser has read it
		if !slices.ContainsFunc(pureImports, func(may string) bool { return below(path(to), may) }) {
			out = append(out, "imports "+path(to))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			from, isName := s.X.(*ast.Ident)
			if isName && from.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"},
				s.Sel.Name) {
				out = append(out, "calls time."+s.Sel.Name)
			}
		}
		return true
	})
	return out
}

func TestPureFiles(t *testing.T) {
	for dir, files := range pureFiles {
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, what := range impure(file) {
				t.Errorf("%s/%s is to be pure and %s", dir, name, what)
			}
		}
	}
}

func TestPureFilesCanFail(t *testing.T) {
	const source = `package p
import ("context"; "time"; "github.com/holdfast-lb/holdfast/internal/k8s"; "github.com/holdfast-lb/holdfast/internal/lb")
func f() time.Duration { return time.Since(x.Now()) }`
	file, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"imports context", "imports internal/k8s", "calls time.Since"}, impure(file)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
