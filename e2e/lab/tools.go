package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// toolSet is one project whose programs the lab compiles. Its versions are in
// the module tools/NAME, and nowhere else.
type toolSet struct {
	name, module string
	programs     map[string]string // program: package
	cgo          bool
	tags         string
	stamp        func(version string) []string // values for -ldflags -X
}

// toolSets are listed with the longest build first.
var toolSets = []toolSet{
	{
		name: "kubernetes", module: "k8s.io/kubernetes", stamp: stampKubernetes,
		programs: inModule("k8s.io/kubernetes/cmd/", "kube-apiserver", "kube-controller-manager",
			"kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
	},
	{
		name: "helm", module: "helm.sh/helm/v4",
		programs: inModule("helm.sh/helm/v4/cmd/", "helm"),
		stamp:    stampOne("helm.sh/helm/v4/internal/version.version"),
	},
	{
		name: "containerd", module: "github.com/containerd/containerd/v2",
		programs: inModule("github.com/containerd/containerd/v2/cmd/", "containerd", "containerd-shim-runc-v2", "ctr"),
		tags:     "no_btrfs no_zfs no_devmapper",
		stamp:    stampOne("github.com/containerd/containerd/v2/version.Version"),
	},
	{
		name: "etcd", module: "go.etcd.io/etcd/server/v3",
		programs: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"},
	},
	{
		name: "runc", module: "github.com/opencontainers/runc",
		programs: map[string]string{"runc": "github.com/opencontainers/runc"},
		// libseccomp is a C library.
		cgo: true, tags: "seccomp",
	},
	{
		name: "cni", module: "github.com/containernetworking/plugins",
		programs: map[string]string{
			"ptp":        "github.com/containernetworking/plugins/plugins/main/ptp",
			"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
			"loopback":   "github.com/containernetworking/plugins/plugins/main/loopback",
			"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
			"portmap":    "github.com/containernetworking/plugins/plugins/meta/portmap",
		},
		stamp: stampOne("github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion"),
	},
}

func inModule(prefix string, names ...string) map[string]string {
	m := make(map[string]string, len(names))
	for _, n := range names {
		m[n] = prefix + n
	}
	return m
}

func stampOne(variable string) func(string) []string {
	return func(version string) []string { return []string{variable + "=" + version} }
}

// stampKubernetes sets what kubelets and the API server report; charts look at it.
func stampKubernetes(version string) []string {
	var out []string
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		out = append(out, p+".gitVersion="+version, p+".gitMajor="+parts[0], p+".gitMinor="+parts[1],
			p+".gitTreeState=clean", p+".gitCommit="+strings.Repeat("0", 40), p+".buildDate=1970-01-01T00:00:00Z")
	}
	return out
}

// requiredVersion finds the version that a go.mod requires of the module.
func requiredVersion(gomod []byte, module string) (string, error) {
	for line := range bytes.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(string(line)), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("find version of %s: not required", module)
}

// flags returns the arguments of go build that decide what comes out.
func (t toolSet) flags(version string) []string {
	ld := "-s -w"
	if t.stamp != nil {
		for _, x := range t.stamp(version) {
			ld += " -X " + x
		}
	}
	return []string{"-trimpath", "-tags", t.tags, "-ldflags", ld}
}

// dir returns where the set's programs are kept: a directory named by all that
// decides their content.
func (t toolSet) dir(cache, source string) (string, []string, error) {
	h := sha256.New()
	var version string
	for _, name := range []string{"go.mod", "go.sum", "tools.go"} {
		b, err := os.ReadFile(filepath.Join(source, t.name, name))
		if err != nil {
			return "", nil, fmt.Errorf("read tools of the lab: %w", err)
		}
		if name == "go.mod" {
			if version, err = requiredVersion(b, t.module); err != nil {
				return "", nil, err
			}
		}
		h.Write(b)
	}
	flags := t.flags(version)
	fmt.Fprintf(h, "%s %v %v", t.name, t.cgo, flags)
	return filepath.Join(cache, t.name+"-"+hex.EncodeToString(h.Sum(nil))[:16]), flags, nil
}

// buildTools makes sure that all programs are there and returns their directories by set.
func buildTools(ctx context.Context, repo string, progress io.Writer) (map[string]string, error) {
	userCache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache: %w", err)
	}
	cache, source := filepath.Join(userCache, "holdfast-lab"), filepath.Join(repo, "e2e", "lab", "tools")
	dirs := make(map[string]string)
	group, ctx := errgroup.WithContext(ctx)
	// Linking uses one core, compiling all: two sets at a time keep them busy.
	group.SetLimit(2)
	lines := &lineWriter{w: progress}
	for _, t := range toolSets {
		dir, flags, err := t.dir(cache, source)
		if err != nil {
			return nil, err
		}
		dirs[t.name] = dir
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		group.Go(func() error { return t.build(ctx, filepath.Join(source, t.name), dir, flags, lines) })
	}
	return dirs, group.Wait()
}

// build compiles into a directory beside, so that dir is complete or not there.
func (t toolSet) build(ctx context.Context, source, dir string, flags []string, progress io.Writer) error {
	partial := dir + ".partial"
	if err := os.MkdirAll(partial, 0o755); err != nil {
		return err
	}
	for _, program := range slices.Sorted(maps.Keys(t.programs)) {
		start := time.Now()
		fmt.Fprintf(progress, "compiling %s\n", program)
		args := append([]string{"-o", filepath.Join(partial, program)}, flags...)
		if err := goBuild(ctx, source, dir+".tmp", t.cgo, append(args, t.programs[program])...); err != nil {
			return fmt.Errorf("compile %s: %w", program, err)
		}
		fmt.Fprintf(progress, "compiled  %s in %s\n", program, seconds(time.Since(start)))
	}
	return os.Rename(partial, dir)
}

// lineWriter lets several builds report without mixing their lines.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
