package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/release/oci"
)

const (
	ciliumImage = "lab/cilium:v1"
	// Cilium's own programs are apart from the node's programs, which its agent sees at /usr.
	ciliumPrograms = "/opt/cilium/bin"
)

// ciliumPackages are what the agent calls in each node: it compiles its programs when it starts.
var ciliumPackages = map[string]string{"clang-19": "clang-19", "ipset": "ipset", "iptables": "iptables"}

// ciliumShell is what the scripts of Cilium's init containers call.
var ciliumShell = []string{"sh", "bash", "basename", "cp", "mkdir", "mv", "rm"}

// cilium returns Cilium as its own chart installs it, without Envoy and Hubble: beside kube-proxy or in place of it.
func cilium(hasKubeProxy bool) Plugin {
	return Plugin{
		HasKubeProxy: hasKubeProxy,
		Packages:     ciliumPackages,
		// The agent mounts the directory of kernel modules, which is made if it is missing.
		Overlays: []string{"/usr/lib"},
		Sysctls:  map[string]string{"kernel/timer_migration": "0", "kernel/unprivileged_bpf_disabled": "1"},
		Sets:     []toolset.Set{toolset.Cilium},
		Images: func(s Site) ([]oci.Image, error) {
			image, err := ciliumFiles(s)
			return []oci.Image{image}, err
		},
		Manifests: func(ctx context.Context, s Site) ([]byte, error) { return ciliumManifests(ctx, s, !hasKubeProxy) },
		Namespace: "kube-system",
		Workloads: []string{"deployment/cilium-operator", "daemonset/cilium"},
	}
}

// ciliumFiles returns the image of the agent and the operator.
func ciliumFiles(s Site) (oci.Image, error) {
	source, err := ciliumSource(context.Background())
	if err != nil {
		return oci.Image{}, err
	}
	files := map[string]string{
		"/opt/cni/bin/cilium-cni": s.Tool("cilium-cni"),
		"/cni/loopback":           s.Tool("loopback"),
	}
	for program := range toolset.Cilium.Programs {
		files[ciliumPrograms+"/"+program] = s.Tool(program)
	}
	// Files of a module are not executable.
	for _, script := range []string{
		"images/cilium/init-container.sh", "plugins/cilium-cni/install-plugin.sh", "plugins/cilium-cni/cni-uninstall.sh",
	} {
		b, err := os.ReadFile(filepath.Join(source, script))
		if err != nil {
			return oci.Image{}, err
		}
		copied := filepath.Join(s.Dir, filepath.Base(script))
		if err := os.WriteFile(copied, b, 0o755); err != nil {
			return oci.Image{}, err
		}
		files["/"+filepath.Base(script)] = copied
	}
	err = filepath.WalkDir(filepath.Join(source, "bpf"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files["/var/lib/cilium/"+filepath.ToSlash(strings.TrimPrefix(path, source+"/"))] = path
		return nil
	})
	if err != nil {
		return oci.Image{}, err
	}
	shell, err := withLibraries(ciliumShell)
	if err != nil {
		return oci.Image{}, err
	}
	maps.Copy(files, shell)
	return oci.Image{
		Name:      "docker.io/" + ciliumImage,
		Env:       []string{"PATH=" + ciliumPrograms + ":/usr/lib/llvm-19/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Platforms: []oci.Platform{{Architecture: runtime.GOARCH, Files: files}},
	}, nil
}

// ciliumManifests renders Cilium's chart.
func ciliumManifests(ctx context.Context, s Site, replacesKubeProxy bool) ([]byte, error) {
	source, err := ciliumSource(ctx)
	if err != nil {
		return nil, err
	}
	values, err := render("cilium.yaml", map[string]any{
		"Image":             "docker.io/" + ciliumImage,
		"Server":            s.Plan[0].Legs[0].V4.Addr(),
		"ReplacesKubeProxy": replacesKubeProxy,
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(
		ctx,
		s.Tool("helm"),
		"template",
		"cilium",
		filepath.Join(source, "install/kubernetes/cilium"),
		"--namespace",
		"kube-system",
		"--values",
		"-",
	)
	cmd.Stdin = strings.NewReader(string(values))
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return nil, fmt.Errorf("render Cilium's chart: %w: %s", err, failed.Stderr)
	}
	return out, err
}

// ciliumSource returns the directory of Cilium's module, which has its eBPF programs and its chart.
func ciliumSource(ctx context.Context) (string, error) {
	return moduleSource(ctx, "cilium", "github.com/cilium/cilium")
}

// library is a path that ldd prints.
var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// withLibraries returns the files of an image that has some of the machine's programs, in /bin, with their libraries.
func withLibraries(programs []string) (map[string]string, error) {
	files := map[string]string{}
	for _, p := range programs {
		path, err := exec.LookPath(p)
		if err != nil {
			return nil, err
		}
		files["/bin/"+p] = path
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			return nil, fmt.Errorf("list libraries of %s: %w", path, err)
		}
		for _, m := range library.FindAllStringSubmatch(string(out), -1) {
			files[m[1]] = m[1]
		}
	}
	return files, nil
}
