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
			if err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"p.f: Round", "p.f: UnixNano", "p: UTC"}, dates(file, "p")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
