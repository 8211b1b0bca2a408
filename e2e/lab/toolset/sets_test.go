package toolset

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every set has its module, and the module requires the set's project.
func TestToolSetsArePinned(t *testing.T) {
	for _, set := range slices.Concat(Cluster, Kind, []Set{MetalLB, FRRK8s, Flannel, Cilium, Calico}) {
		dir, flags, err := set.dir("/cache", "../tools")
		if err != nil {
			t.Errorf("%s: %v", set.Name, err)
			continue
		}
		if !strings.HasPrefix(dir, "/cache/"+set.Name+"-") {
			t.Errorf("%s: directory %s", set.Name, dir)
		}
		again, _, err := set.dir("/cache", "../tools")
		if err != nil || again != dir {
			t.Errorf("%s: directory %s, then %s (%v)", set.Name, dir, again, err)
		}
		if !slices.Contains(flags, "-trimpath") {
			t.Errorf("%s: flags %q", set.Name, flags)
		}
		for _, pkg := range set.Programs {
			if strings.HasPrefix(pkg, "github.com/holdfast-lb/") {
				continue // in the set's own module
			}
			imports, err := os.ReadFile(filepath.Join("../tools", set.Name, "tools.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(imports), `"`+pkg+`"`) {
				t.Errorf("%s: tools.go does not import %s, so go.mod may lack its requirements", set.Name, pkg)
			}
		}
	}
}

func TestRequiredVersion(t *testing.T) {
	const gomod = "module x\n\nrequire example.com/a v1.2.3\n\nrequire (\n\texample.com/b v2.0.0 // " +
		"indirect\n)\n\nreplace example.com/c => example.com/c v0.1.0\n"
	for module, want := range map[string]string{
		"example.com/a": "v1.2.3", "example.com/b": "v2.0.0", "example.com/c": "",
	} {
		got, err := requiredVersion([]byte(gomod), module)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v; want %q", module, got, err, want)
		}
	}
}

func TestStampKubernetes(t *testing.T) {
	got := stampKubernetes("v1.36.3")
	for _, want := range []string{
		"k8s.io/component-base/version.gitVersion=v1.36.3", "k8s.io/client-go/pkg/version.gitMinor=36",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("stamp has no %q: %q", want, got)
		}
	}
}
