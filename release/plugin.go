package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-lb/holdfast/release/oci"
	"sigs.k8s.io/yaml"
)

// plugin compiles kubectl-holdfast for operators' machines, packs each with the license, and writes holdfast.yaml, the manifest that
// krew, the manager of kubectl's plugins, installs it from.
func (r release) plugin(ctx context.Context) error {
	var platforms []any
	for _, system := range []string{"darwin", "linux", "windows"} {
		for _, a := range r.sorted() {
			name, program := fmt.Sprintf("kubectl-holdfast-%s-%s-%s.tar.gz", r.version, system, a), "kubectl-holdfast"
			sum, err := r.packPlugin(ctx, system, a, filepath.Join(r.out, name))
			if err != nil {
				return fmt.Errorf("plugin for %s-%s: %w", system, a, err)
			}
			if system == "windows" {
				program += ".exe"
			}
			platforms = append(platforms, map[string]any{
				"selector": map[string]any{"matchLabels": map[string]string{"os": system, "arch": a}},
				"uri":      "https://" + module + "/releases/download/v" + r.version + "/" + name, "sha256": sum, "bin": program,
			})
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

// packPlugin makes the archive of one platform, and returns its checksum.
func (r release) packPlugin(ctx context.Context, system, architecture, archive string) (sum string, err error) {
	dir, err := os.MkdirTemp(r.out, "plugin-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err = os.Link("LICENSE", filepath.Join(dir, "LICENSE")); err == nil {
		err = r.build(ctx, system, architecture, dir, "./kubectl-holdfast")
	}
	if err == nil {
		err = oci.Archive(archive, dir, "", r.date)
	}
	if err != nil {
		return "", err
	}
	packed, err := os.ReadFile(archive)
	return sumOf(packed), err
}
