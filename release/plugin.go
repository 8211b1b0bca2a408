package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-lb/holdfast/release/oci"
	"sigs.k8s.io/yaml"
)

// pluginSystems are the operating systems of operators' machines.
var pluginSystems = []string{"darwin", "linux", "windows"}

// krewPlatform is one entry of a plugin manifest of krew, the manager of kubectl's plugins (krew.googlecontainertools.github.com/v1alpha2).
type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// plugin compiles kubectl-holdfast for operators' machines, packs each with the license, and writes the manifest that krew installs
// it from: holdfast.yaml.
func (r release) plugin(ctx context.Context) error {
	var platforms []krewPlatform
	for _, system := range pluginSystems {
		for _, a := range r.sorted() {
			p, err := r.packPlugin(ctx, system, a)
			if err != nil {
				return fmt.Errorf("plugin for %s-%s: %w", system, a, err)
			}
			platforms = append(platforms, p)
		}
	}
	manifest, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": map[string]string{"name": "holdfast"},
		"spec": map[string]any{
			"version": "v" + r.version, "homepage": "https://" + module, "platforms": platforms,
			"shortDescription": "Explain why a load balancer address answers or not",
			"description":      "Explains each decision of the load balancer Holdfast about a Service, and what a change would change.",
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "holdfast.yaml"), manifest, 0o644)
}

// packPlugin makes the archive of one platform.
func (r release) packPlugin(ctx context.Context, system, architecture string) (p krewPlatform, err error) {
	dir, err := os.MkdirTemp(r.out, "plugin-")
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := r.build(ctx, system, architecture, dir, "./kubectl-holdfast"); err != nil {
		return p, err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return p, err
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), license, 0o644); err != nil {
		return p, err
	}
	name := strings.Join([]string{"kubectl-holdfast", r.version, system, architecture}, "-") + ".tar.gz"
	packed, err := r.pack(dir)
	if err != nil {
		return p, err
	}
	p.Selector.MatchLabels = map[string]string{"os": system, "arch": architecture}
	p.URI = "https://" + module + "/releases/download/v" + r.version + "/" + name
	p.SHA256, p.Bin = fmt.Sprintf("%x", sha256.Sum256(packed)), "kubectl-holdfast"
	if system == "windows" {
		p.Bin += ".exe"
	}
	return p, os.WriteFile(filepath.Join(r.out, name), packed, 0o644)
}

// pack returns a directory as a compressed archive, which depends on its files and the commit's date only.
func (r release) pack(dir string) ([]byte, error) {
	archive := dir + ".tar"
	if err := oci.Archive(archive, dir, "", r.date); err != nil {
		return nil, err
	}
	defer os.Remove(archive)
	content, err := os.ReadFile(archive)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err = w.Write(content)
	err = errors.Join(err, w.Close())
	return out.Bytes(), err
}
