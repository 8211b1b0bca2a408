package nodeimage

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/holdfast-lb/holdfast/release/oci"
)

// contents of the images that kubeadm wants, by the last part of their names: a program of a tool set, and where it is
// in the image.
var contents = map[string]struct{ set, program, path string }{
	"kube-apiserver":          {"kubernetes", "kube-apiserver", "/usr/local/bin/kube-apiserver"},
	"kube-controller-manager": {"kubernetes", "kube-controller-manager", "/usr/local/bin/kube-controller-manager"},
	"kube-scheduler":          {"kubernetes", "kube-scheduler", "/usr/local/bin/kube-scheduler"},
	"kube-proxy":              {"kubernetes", "kube-proxy", "/usr/local/bin/kube-proxy"},
	"etcd":                    {"etcd", "etcd", "/usr/local/bin/etcd"},
	"coredns":                 {"coredns", "coredns", "/coredns"},
}

// archives writes the images that a cluster of the version starts with, under the names that kubeadm gives them.
func (b Builder) archives(ctx context.Context, root, version, dir string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(b.Tools["kubeadm"], "kubeadm"), "config", "images", "list",
		"--kubernetes-version", version).
		Output()
	if err != nil {
		return fmt.Errorf("list the images of kubeadm: %w", err)
	}
	for _, name := range append(strings.Fields(string(out)), sandbox) {
		short, _, _ := strings.Cut(path.Base(name), ":")
		img := oci.Image{Name: name, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
		files := map[string]string{}
		c, known := contents[short]
		switch {
		case name == sandbox:
			img.Entrypoint = []string{"/pause"}
			files["/pause"] = filepath.Join(b.Tools["pause"], "pause")
		case short == "pause":
			continue // kubeadm's idea of the sandbox; containerd of kind has its own
		case !known:
			return fmt.Errorf("kubeadm wants the image %s, which nothing here makes", name)
		default:
			img.Entrypoint = []string{c.path}
			files[c.path] = filepath.Join(b.Tools[c.set], c.program)
		}
		if short == "kube-proxy" {
			if err := addNetfilter(ctx, root, files); err != nil {
				return err
			}
		}
		img.Platforms = []oci.Platform{{Architecture: runtime.GOARCH, Files: files}}
		if err := oci.Write(filepath.Join(dir, short+".tar"), img); err != nil {
			return err
		}
	}
	return nil
}

// sandbox is the image of pods' sandboxes in kind's configuration of containerd.
const sandbox = "registry.k8s.io/pause:3.10"

// netfilterPrograms are what kube-proxy runs: a program of the root file system, and its names in the image.
var netfilterPrograms = map[string][]string{
	"/usr/sbin/nft":       {"/usr/sbin/nft"},
	"/usr/sbin/conntrack": {"/usr/sbin/conntrack"},
	"/usr/sbin/xtables-nft-multi": {
		"/usr/sbin/iptables",
		"/usr/sbin/iptables-save",
		"/usr/sbin/iptables-restore",
		"/usr/sbin/ip6tables",
		"/usr/sbin/ip6tables-save",
		"/usr/sbin/ip6tables-restore",
	},
	"/usr/bin/dash": {"/bin/sh"},
}

// addNetfilter adds these programs, the extensions of iptables, and all libraries of both.
func addNetfilter(ctx context.Context, root string, files map[string]string) error {
	var binaries []string
	for from, names := range netfilterPrograms {
		binaries = append(binaries, from)
		for _, name := range names {
			files[name] = filepath.Join(root, from)
		}
	}
	extensions, err := filepath.Glob(filepath.Join(root, "usr/lib/*/xtables/*.so"))
	if err != nil {
		return err
	}
	for _, e := range extensions {
		name := strings.TrimPrefix(e, root)
		binaries = append(binaries, name)
		files[name] = e
	}
	// It fails if one has no libraries, and lists the libraries of the others.
	out, err := exec.CommandContext(ctx, "chroot", append([]string{root, "ldd"}, binaries...)...).Output()
	if err != nil && len(out) == 0 {
		return fmt.Errorf("list libraries: %w", err)
	}
	for _, field := range strings.Fields(string(out)) {
		if filepath.IsAbs(field) && !strings.HasSuffix(field, ":") {
			files[field] = filepath.Join(root, field)
		}
	}
	return nil
}
