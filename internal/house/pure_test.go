package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// monotonic are the packages that decide by elapsed time, so changes of the wall clock must
// not affect them.
var monotonic = []string{
	"internal/bfd", "internal/daemon", "internal/detect", "internal/divert", "internal/egress", "internal/filter",
	"internal/heartbeat", "internal/kubeproxy", "internal/layer2", "internal/link", "internal/members",
	"internal/nodelifecycle", "internal/keyed", "internal/liveness", "internal/podnetwork", "internal/unnumbered",
	"speaker",
}

// dating are the functions that make dates for output.
var dating = []string{"onWall"}

// pureFiles contain the decisions of packages that also have effects. They take the time and all
// input as arguments.
var pureFiles = map[string][]string{
	"internal/bfd": {"packet.go", "session.go", "status.go", "table.go"},
	"internal/detect": {
		"beat.go", "claim.go", "detector.go", "dissemination.go", "ownclaim.go", "packet.go", "peer.go", "receive.go",
		"reception.go", "suspicion.go", "timers.go", "view.go", "wire.go",
	},
	"internal/nodelifecycle": {"condition.go", "decide.go", "endpoints.go", "limit.go", "tracker.go"},
	"kubectl-holdfast": {
		"announcement.go", "change.go", "daemons.go", "endpoints.go", "frommetallb.go", "frrk8s.go", "metallb.go",
		"move.go", "objects.go", "openstack.go", "pod.go", "service.go", "snapshot.go", "status.go",
	},
}

// pureImports are what such a file may import.
var pureImports = []string{
	"cmp", "crypto/sha256", "embed", "encoding", "errors", "flag", "fmt", "io", "iter", "maps", "math", "net/netip",
	"reflect", "slices", "strconv", "strings", "text/template", "time", "api/v1beta1", "internal/config",
	"internal/ipam", "internal/lb", "internal/plan", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/utils/ptr",
}

// single are the packages that start no goroutine. make test-unit runs them without the race detector.
var single = []string{
	"internal/config", "internal/detect", "internal/ipam", "internal/lb", "internal/memo", "internal/plan",
}

// dates says where a file takes the date of a time, or strips its monotonic
// reading: what is compared then is the wall clock, which an administrator may set.
func dates(file *ast.File) (out []string) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && slices.Contains(dating, f.Name.Name) {
			continue
		}
		for n := range ast.Preorder(d) {
			call, _ := n.(*ast.CallExpr)
			if call == nil {
				continue
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				continue
			}
			switch name := method.Sel.Name; name {
			case "Round", "Truncate":
				if zero, ok := call.Args[0].(*ast.BasicLit); !ok || zero.Value != "0" {
					continue
				}
				out = append(out, "calls "+name)
			case "Unix", "UnixMilli", "UnixMicro", "UnixNano", "UTC", "Local", "In":
				out = append(out, "calls "+name)
			}
		}
	}
	return out
}

// impure reports a file's imports beyond pureImports, and its reads of the clock.
func impure(file *ast.File) (out []string) {
	for _, i := range file.Imports {
		to, _ := strconv.Unquote(i.Path.Value) // the parser has read it
		if !slices.ContainsFunc(pureImports, func(may string) bool { return below(path(to), may) }) {
			out = append(out, "imports "+path(to))
		}
	}
	reads := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	for s := range nodes[*ast.SelectorExpr](file) {
		if from, isName := s.X.(*ast.Ident); isName && from.Name == "time" && slices.Contains(reads, s.Sel.Name) {
			out = append(out, "calls time."+s.Sel.Name)
		}
	}
	return out
}

// concurrent reports that a file starts a goroutine. Its package is to be removed from PURE in the Makefile then.
func concurrent(file *ast.File) (out []string) {
	for range nodes[*ast.GoStmt](file) {
		out = append(out, "starts a goroutine")
	}
	return out
}

// TestPure: packages and files do not what they are not to do.
func TestPure(t *testing.T) {
	look := func(dir, names string, faults func(*ast.File) []string) {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, names))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no %s: %v", dir, names, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") && !slices.Contains(single, dir) {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			must(t, err)
			for _, fault := range faults(file) {
				t.Errorf("%s %s", name, fault)
			}
		}
	}
	for _, dir := range monotonic {
		look(dir, "*.go", dates)
	}
	for _, dir := range single {
		look(dir, "*.go", concurrent)
	}
	for dir, files := range pureFiles {
		for _, name := range files {
			look(dir, name, impure)
		}
	}
}

func TestPureCanFail(t *testing.T) {
	const source = `package p
import ("context"; "time"; "github.com/holdfast-lb/holdfast/internal/k8s"; "github.com/holdfast-lb/holdfast/internal/lb")
func f() { now := time.Now().Round(0); _ = now.Round(time.Second); _ = now.UnixNano(); go f() }
func onWall() time.Time { return time.Unix(0, 0) }
var started = x.Now().UTC()`
	file, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	must(t, err)
	want := [][]string{
		{"calls Round", "calls UnixNano", "calls UTC"},
		{"imports context", "imports internal/k8s", "calls time.Now"},
		{"starts a goroutine"},
	}
	if diff := cmp.Diff(want, [][]string{dates(file), impure(file), concurrent(file)}); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
