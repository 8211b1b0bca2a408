package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// monotonic are the packages that decide by elapsed time, so changes of the wall clock must
// not affect them.
var monotonic = []string{"internal/bfd", "internal/daemon", "internal/divert", "internal/filter", "internal/heartbeat", "internal/kubeproxy",
	"internal/layer2", "internal/link",
	"internal/members", "internal/nodelifecycle", "internal/keyed", "internal/liveness", "internal/unnumbered", "speaker"}

// dating are the functions that make dates for output.
var dating = []string{"internal/liveness.onWall"}

// dates says where a file takes the date of a time, or strips its monotonic
// reading: what is compared then is the wall clock.
func dates(file *ast.File, dir string) []string {
	var out []string
	for _, d := range file.Decls {
		name := dir
		if f, ok := d.(*ast.FuncDecl); ok {
			name += "." + f.Name.Name
		}
		ast.Inspect(d, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch method.Sel.Name {
			case "Unix", "UnixMilli", "UnixMicro", "UnixNano", "UTC", "Local", "In":
			case "Round", "Truncate":
				if zero, ok := call.Args[0].(*ast.BasicLit); !ok || zero.Value != "0" {
					return true
				}
			default:
				return true
			}
			out = append(out, fmt.Sprintf("%s: %s", name, method.Sel.Name))
			return true
		})
	}
	return out
}

func TestWallClockDecidesNothing(t *testing.T) {
	for _, dir := range monotonic {
		root := filepath.Join("..", "..", dir)
		files, err := fs.Glob(os.DirFS(root), "*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, 0)
			must(t, err)
			for _, d := range dates(file, dir) {
				if where, _, _ := strings.Cut(d, ":"); !slices.Contains(dating, where) {
					t.Errorf("%s uses the wall clock, which an administrator may set", d)
				}
			}
		}
	}
}

func TestWallClockCanFail(t *testing.T) {
	const source = `package p
func f() { now := time.Now().Round(0); _ = now.Round(time.Second); _ = now.UnixNano() }
var started = time.Now().UTC()`
	file, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	must(t, err)
	if diff := cmp.Diff([]string{"p.f: Round", "p.f: UnixNano", "p: UTC"}, dates(file, "p")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

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
			must(t, err)
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
			must(t, err)
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
	must(t, err)
	if diff := cmp.Diff([]string{"imports context", "imports internal/k8s", "calls time.Since"}, impure(file)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
