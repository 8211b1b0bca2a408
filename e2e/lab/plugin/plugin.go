// Package plugin describes the network plugins that a cluster of the lab can have: what is compiled and installed for
// each, what is applied to the cluster, and which of its workloads must be complete before pods have a network. It
// starts nothing itself, and knows nothing of a running lab but its Site.
package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// Routes is the name of the network that the lab makes without a plugin: a pair of links for each pod, and static
// routes between the nodes.
const Routes = "routes"

// Plugin is what a cluster needs for its pods' network.
type Plugin struct {
	// IsLabs reports whether the lab itself makes the network: nodes boot with a CNI configuration and with routes to
	// each other's pods. Otherwise the plugin makes all of it, the controller-manager gives each node its pod prefixes
	// (spec.podCIDRs), and /opt/cni/bin is the node's own.
	IsLabs bool
	// HasKubeProxy reports whether kube-proxy runs.
	HasKubeProxy bool
	// Packages are Debian's that are installed on the machine, and so are in each node: program to package.
	Packages map[string]string
	// Overlays are directories in which the plugin's pods make files, and which each node therefore has a copy of.
	Overlays []string
	// Sysctls are the machine's settings that the plugin's agents write. Each node has files of its own in their place.
	Sysctls map[string]string
	// Sets are compiled beside the sets of every cluster.
	Sets []toolset.Set
	// Images are loaded on every node before the manifests are applied; nil means none.
	Images func(Site) ([]oci.Image, error)
	// Manifests returns YAML that is applied once the API server is ready. Nodes become Ready by it. Nil means none.
	Manifests func(context.Context, Site) ([]byte, error)
	// Workloads of Namespace, named as in "daemonset/NAME", must be complete before the lab is up.
	Namespace string
	Workloads []string
}

// Site is what a plugin may know of the lab.
type Site struct {
	// Plan has all hosts, the control plane first.
	Plan wire.Plan
	// Server is the URL of the API server, which plugins without kube-proxy cannot reach by its Service.
	Server string
	// Tool returns the path of a compiled program, kubectl and helm among them.
	Tool func(name string) string
	// Dir is a directory for files that are written while images and manifests are made. It goes with the lab.
	Dir string
}

var plugins = map[string]Plugin{
	Routes:            {IsLabs: true, HasKubeProxy: true},
	"calico":          calico(),
	"cilium":          cilium(true),
	"cilium-kpr":      cilium(false),
	"flannel-vxlan":   flannel("vxlan"),
	"flannel-host-gw": flannel("host-gw"),
}

// Names returns the names of all networks.
func Names() []string { return slices.Sorted(maps.Keys(plugins)) }

// Find returns the network of a name.
func Find(name string) (Plugin, error) {
	p, ok := plugins[name]
	if !ok {
		return p, fmt.Errorf("network %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return p, nil
}

// moduleSource returns the directory of a module that a set requires.
func moduleSource(ctx context.Context, set, module string) (string, error) {
	repo, err := toolset.FindRepo()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join(repo, "e2e/lab/tools", set)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w: %s", module, err, out)
	}
	var found struct{ Dir string }
	return found.Dir, json.Unmarshal(out, &found)
}
