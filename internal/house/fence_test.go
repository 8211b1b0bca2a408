// Package house tests properties of the whole repository: the direction of imports, the
// chart and the documents. It contains tests only.
package house

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/holdfast-lb/holdfast"

// fence lists the allowed imports of a package beside the standard library: the module's
// own packages by path within the module, others by module path; each includes the packages
// below it. The longest matching path is a package's fence.
var fence = map[string][]string{
	"api":                {"k8s.io/apimachinery"},
	"internal/lb":        {},
	"internal/ipam":      {"internal/lb"},
	"internal/memo":      {"internal/lb"},
	"internal/plan":      {"internal/lb", "internal/memo"},
	"internal/kernel":    {"internal/daemon", "internal/lb"},
	"internal/keyed":     {},
	"internal/haproxy":   {"internal/lb"},
	"internal/openstack": {"internal/lb"},
	"internal/config": {
		"api", "internal/lb", "internal/memo", "internal/openstack", "k8s.io/api", "k8s.io/apimachinery",
	},
	"internal/layer2": {
		"internal/lb", "internal/rt", "github.com/mdlayher", "github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/nft": {
		"internal/lb", "github.com/google/nftables/expr", "github.com/google/nftables/userdata",
		"github.com/mdlayher/netlink", "github.com/mdlayher/socket", "golang.org/x",
	},
	"internal/filter": {"internal/lb", "internal/nft", "github.com/google/nftables/expr", "github.com/mdlayher/netlink",
		"github.com/prometheus/client_golang", "golang.org/x"},
	"internal/relay": {
		"internal/lb", "internal/nft", "github.com/google/nftables/expr", "github.com/prometheus/client_golang",
		"golang.org/x",
	},
	"internal/egress": {"internal/lb", "internal/nft", "github.com/google/nftables/expr", "github.com/mdlayher/netlink",
		"github.com/prometheus/client_golang", "github.com/vishvananda/netlink", "golang.org/x"},
	"internal/divert": {"internal/lb", "internal/nft", "github.com/google/nftables/expr", "golang.org/x"},
	"internal/bgp":    {"internal/child", "internal/daemon", "internal/lb", "github.com/prometheus/client_golang"},
	"internal/bgp/engine": {
		"internal/child", "internal/lb", "github.com/osrg/gobgp/v4", "github.com/vishvananda/netlink", "golang.org/x",
	},
	"internal/child": {"golang.org/x/sys"},
	"internal/unnumbered": {
		"internal/lb", "github.com/mdlayher/ndp", "github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/kubeproxy": {
		"internal/lb", "internal/nft", "github.com/google/nftables/expr", "github.com/prometheus/client_golang",
		"github.com/vishvananda/netlink", "golang.org/x",
	},
	"internal/peering": {
		"internal/bfd", "internal/bgp", "internal/daemon", "internal/lb", "internal/link", "internal/unnumbered",
		"github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/node": {
		"internal/bgp", "internal/config", "internal/daemon", "internal/detect", "internal/divert", "internal/egress",
		"internal/filter", "internal/heartbeat", "internal/k8s", "internal/kernel", "internal/keyed", "internal/kubeproxy",
		"internal/layer2", "internal/lb", "internal/link", "internal/liveness", "internal/members", "internal/peering",
		"internal/plan", "internal/podnetwork", "internal/relay", "internal/report", "k8s.io/api", "k8s.io/apimachinery",
		"github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/node/facts":  {"internal/heartbeat", "internal/kubeproxy", "internal/lb", "internal/link"},
	"internal/node/probe":  {"internal/layer2", "internal/lb", "internal/plan", "golang.org/x"},
	"internal/node/owners": {"internal/daemon", "internal/lb", "internal/members", "internal/plan"},
	"internal/podnetwork":  {"internal/lb", "internal/nft", "golang.org/x"},
	"internal/link": {
		"internal/lb", "github.com/vishvananda/netlink", "github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/report": {
		"api", "internal/config", "internal/daemon", "internal/k8s", "internal/lb", "internal/link",
		"internal/liveness", "internal/memo", "internal/plan", "k8s.io/api", "k8s.io/apimachinery",
		"github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/rt":     {"golang.org/x"},
	"internal/bfd":    {"internal/rt", "github.com/prometheus/client_golang", "golang.org/x"},
	"internal/detect": {"internal/lb"},
	"internal/heartbeat": {
		"internal/child", "internal/detect", "internal/rt", "github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/liveness": {"internal/detect", "internal/lb", "golang.org/x/sync/errgroup"},
	"internal/members": {
		"internal/heartbeat", "internal/lb", "github.com/hashicorp/memberlist", "github.com/prometheus/client_golang",
		"golang.org/x",
	},
	"internal/k8s": {
		"api", "internal/config", "internal/lb", "k8s.io",
		"github.com/prometheus/client_golang", "golang.org/x",
	},
	"internal/nodelifecycle": {"api", "internal/lb", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/utils",
		"github.com/prometheus/client_golang"},
	"kubectl-holdfast": {
		"api", "internal/config", "internal/ipam", "internal/lb", "internal/plan", "k8s.io", "github.com/spf13/cobra",
		"golang.org/x/sync/errgroup", "gopkg.in/gcfg.v1", "sigs.k8s.io/yaml",
	},
	"internal/daemon":  {"github.com/prometheus/client_golang", "golang.org/x/sys"},
	"internal/apitest": {"gopkg.in/evanphx/json-patch.v4", "k8s.io", "sigs.k8s.io/yaml"},
	"internal/nstest":  {"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x"},
	"internal/house":   {},
	"controller": {
		"api", "internal", "k8s.io/api", "k8s.io/apimachinery", "github.com/prometheus/client_golang", "golang.org/x",
	},
	"speaker/bgp":       {"internal/bgp/engine"},
	"speaker/heartbeat": {"internal/bfd", "internal/heartbeat"},
	"proxy": {
		"api", "internal", "k8s.io/api", "k8s.io/apimachinery", "github.com/prometheus/client_golang",
		"github.com/prometheus/client_model", "github.com/prometheus/common", "golang.org/x",
	},
	"speaker": {
		"api", "internal", "k8s.io/api", "k8s.io/apimachinery", "github.com/prometheus/client_golang", "golang.org/x",
	},
	"e2e": {
		"api", "e2e", "internal/k8s", "k8s.io", "sigs.k8s.io/yaml", "golang.org/x", "github.com/vishvananda",
	},
	"e2e/cmd/bench": {
		"api", "e2e", "internal/config", "internal/ipam", "internal/k8s", "internal/lb", "k8s.io", "sigs.k8s.io/yaml",
		"golang.org/x",
	},
	"e2e/chaos":  {},
	"e2e/whohas": {"golang.org/x"},
	"e2e/lab":    {"e2e/lab", "release/oci", "golang.org/x", "github.com/vishvananda"},
	"e2e/kind": {
		"e2e/kind", "e2e/lab/debian", "e2e/lab/router", "e2e/lab/toolset", "e2e/lab/wire", "release/oci",
	},
	"e2e/kind/cmd/runcfit": {},
	"e2e/lab/debian":       {},
	"e2e/lab/plugin":       {"e2e/lab/toolset", "e2e/lab/wire", "release/oci"},
	"e2e/lab/router":       {"e2e/lab/wire"},
	"e2e/lab/toolset":      {"golang.org/x"},
	"e2e/lab/wire":         {},
	"e2e/lab/hostinit":     {"golang.org/x"},
	"e2e/lab/cmd/pause":    {},
	"release": {
		"release/oci", "github.com/CycloneDX/cyclonedx-go", "github.com/google/go-containerregistry",
		"sigs.k8s.io/yaml",
	},
	"release/oci": {"github.com/google/go-containerregistry"},
}

// testOnly are packages that only tests, and each other, may import.
var testOnly = []string{"internal/nstest", "internal/apitest"}

// onlyBy are packages that only these may import: what a router sends is parsed in processes of its own.
var onlyBy = map[string][]string{"internal/bgp/engine": {"speaker/bgp"}}

// goPackage is a part of the output of go list.
type goPackage struct {
	ImportPath string
	Imports    []string
}

// path is a package's path within the module, or its import path where it is not ours.
func path(importPath string) string { return strings.TrimPrefix(importPath, module+"/") }

func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

func below(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// allowed returns the fence of a package.
func allowed(p string) (may []string, known bool) {
	for root := p; ; {
		if may, known = fence[root]; known {
			return may, true
		}
		i := strings.LastIndexByte(root, '/')
		if i < 0 {
			return nil, false
		}
		root = root[:i]
	}
}

// breaches returns the imports that the fence does not allow, sorted.
func breaches(packages []goPackage) []string {
	var out []string
	for _, p := range packages {
		from := path(p.ImportPath)
		may, known := allowed(from)
		if !known {
			out = append(out, from+" has no fence: say in fence_test.go what it may import")
			continue
		}
		for _, i := range p.Imports {
			to := path(i)
			if by, few := onlyBy[to]; few && !slices.Contains(by, from) {
				out = append(out, fmt.Sprintf("%s must not import %s", from, to))
				continue
			}
			ours := slices.ContainsFunc(may, func(m string) bool { return below(to, m) }) &&
				(slices.Contains(testOnly, from) || !slices.Contains(testOnly, to))
			// Packages of one tree may use each other.
			if isStandard(i) || ours || below(to, from) {
				continue
			}
			out = append(out, fmt.Sprintf("%s must not import %s", from, to))
		}
	}
	slices.Sort(out)
	return out
}

// reads opens every directory below root. go test does not know which files another
// program reads for a test, and would reuse an outdated cached result.
func reads(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(_ string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted during the walk
		}
		return err
	})
	must(t, err)
}

func TestFence(t *testing.T) {
	for _, tree := range []string{"api", "controller", "e2e", "internal", "proxy", "release", "speaker"} {
		reads(t, "../../"+tree)
	}
	cmd := exec.Command("go", "list", "-e", "-tags", "e2e,soak,oldest,upgrade,hostile,alerts,chaos",
		"-json=ImportPath,Imports", module+"/...")
	cmd.Stderr = t.Output()
	list, err := cmd.Output()
	must(t, err)
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(string(list))); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		packages = append(packages, p)
	}
	if len(packages) < 5 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	for _, b := range breaches(packages) {
		t.Error(b)
	}
}

func TestFenceCanFail(t *testing.T) {
	ours := func(p string) string { return module + "/" + p }
	got := breaches([]goPackage{
		{ImportPath: ours("internal/plan"), Imports: []string{"slices", ours("internal/lb"), ours("internal/link")}},
		{ImportPath: ours("internal/ipam"), Imports: []string{"golang.org/x/sync/errgroup"}},
		{ImportPath: ours("internal/layer2"), Imports: []string{
			"k8s.io/api/core/v1", ours("internal/link"), ours("internal/bgp"),
		}},
		{ImportPath: ours("internal/layer2/inner"), Imports: []string{"github.com/vishvananda/netlink"}},
		{ImportPath: ours("internal/k8s"), Imports: []string{"k8s.io/client-go/rest", ours("internal/plan")}},
		{ImportPath: ours("speaker"), Imports: []string{
			ours("internal/bgp"), ours("internal/nstest"), "k8s.io/client-go/rest", "github.com/osrg/gobgp/v4/api",
			"github.com/hashicorp/memberlist",
		}},
		{ImportPath: ours("e2e/lab"), Imports: []string{ours("release/oci"), ours("internal/lb")}},
		{ImportPath: ours("internal/novel"), Imports: []string{"fmt"}},
		{ImportPath: ours("internal/bgp"), Imports: []string{ours("internal/bgp/engine"), "github.com/osrg/gobgp/v4/api"}},
		{ImportPath: ours("speaker/bgp"), Imports: []string{ours("internal/bgp/engine"), ours("internal/bgp")}},
	})
	want := []string{
		"e2e/lab must not import internal/lb",
		"internal/bgp must not import github.com/osrg/gobgp/v4/api",
		"internal/bgp must not import internal/bgp/engine",
		"internal/ipam must not import golang.org/x/sync/errgroup",
		"internal/k8s must not import internal/plan",
		"internal/layer2 must not import internal/bgp",
		"internal/layer2 must not import internal/link",
		"internal/layer2 must not import k8s.io/api/core/v1",
		"internal/layer2/inner must not import github.com/vishvananda/netlink",
		"internal/novel has no fence: say in fence_test.go what it may import",
		"internal/plan must not import internal/link",
		"speaker must not import github.com/hashicorp/memberlist",
		"speaker must not import github.com/osrg/gobgp/v4/api",
		"speaker must not import internal/nstest",
		"speaker must not import k8s.io/client-go/rest",
		"speaker/bgp must not import internal/bgp",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// apiNeeds are the modules whose packages the API types import, themselves or through others. Whoever imports the types
// takes these on, and nothing that the daemons need.
var apiNeeds = []string{
	"github.com/fxamacker/cbor/v2", "github.com/go-logr/logr", "github.com/json-iterator/go",
	"github.com/modern-go/concurrent", "github.com/modern-go/reflect2", "github.com/x448/float16", "go.yaml.in/yaml/v2",
	"golang.org/x/net", "golang.org/x/text", "gopkg.in/inf.v0", "k8s.io/apimachinery", "k8s.io/klog/v2",
	"k8s.io/kube-openapi", "k8s.io/utils", "sigs.k8s.io/json", "sigs.k8s.io/randfill",
	"sigs.k8s.io/structured-merge-diff/v6",
}

// TestAPIModule: the types are a module of their own, which needs apimachinery and what that needs.
func TestAPIModule(t *testing.T) {
	const dir = "../../api/v1beta1"
	reads(t, dir)
	cmd := exec.Command("go", "-C", dir, "list", "-deps", "-f",
		"{{if not .Standard}}{{.ImportPath}} {{.Module.Path}}{{end}}", "./...")
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	must(t, err)
	seen := false
	for line := range strings.Lines(string(out)) {
		pkg, of, _ := strings.Cut(strings.TrimSpace(line), " ")
		if of == module+"/api/v1beta1" {
			seen = seen || pkg == of
			continue
		}
		if !slices.Contains(apiNeeds, of) {
			t.Errorf("the API types need %s of module %s", pkg, of)
		}
	}
	if !seen {
		t.Errorf("api/v1beta1 is not a module of its own:\n%s", out)
	}
}
