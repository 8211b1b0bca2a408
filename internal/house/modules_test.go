package house

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// apiNeeds are the modules whose packages the API types import, themselves or through others. Whoever imports the types
// takes these on, and nothing that the daemons need.
var apiNeeds = []string{
	"github.com/fxamacker/cbor/v2", "github.com/go-logr/logr", "github.com/json-iterator/go", "github.com/modern-go/concurrent",
	"github.com/modern-go/reflect2", "github.com/x448/float16", "go.yaml.in/yaml/v2", "golang.org/x/net", "golang.org/x/text",
	"gopkg.in/inf.v0", "k8s.io/apimachinery", "k8s.io/klog/v2", "k8s.io/kube-openapi", "k8s.io/utils", "sigs.k8s.io/json",
	"sigs.k8s.io/randfill", "sigs.k8s.io/structured-merge-diff/v6",
}

// TestAPIModule: the types are a module of their own, which needs apimachinery and what that needs.
func TestAPIModule(t *testing.T) {
	const dir = "../../api/v1beta1"
	reads(t, dir)
	cmd := exec.Command("go", "-C", dir, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{.Module.Path}}{{end}}", "./...")
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
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
