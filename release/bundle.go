package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-lb/holdfast/release/oci"
	"sigs.k8s.io/yaml"
)

//go:embed load.sh
var loadScript string

// airGap packs the files that an installation without a registry needs.
func (r release) airGap(context.Context) (err error) {
	// The directory is beside the files, so that hard links suffice.
	dir, err := os.MkdirTemp(r.out, "airgap-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	files := []string{
		daemons.archive,
		proxies.archive,
		filepath.Base(r.packed()),
		"install.yaml",
		"uninstall.yaml",
	}
	for _, file := range files {
		err := os.Link(filepath.Join(r.out, file), filepath.Join(dir, file))
		if err != nil {
			return err
		}
	}

	script := strings.NewReplacer(
		"@IMAGE@", r.name(daemons),
		"@PROXY@", r.name(proxies),
		"@PROXY_ARCHITECTURES@", strings.Join(r.platforms(proxies), " "),
	).Replace(loadScript)
	err = os.WriteFile(filepath.Join(dir, "load.sh"), []byte(script), 0o755)
	if err != nil {
		return err
	}

	err = sums(dir)
	if err != nil {
		return err
	}

	name := "holdfast-" + r.version
	archive := filepath.Join(r.out, name+"-airgap.tar")
	return oci.Archive(archive, dir, name, r.date)
}

// sums writes the checksums of the release.
func (r release) sums(context.Context) error {
	return sums(r.out)
}

// sums writes SHA256SUMS of all files in a directory, as sha256sum reads it.
func sums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}

	var text strings.Builder
	for _, f := range files { // sorted
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}

		fmt.Fprintf(&text, "%s  %s\n", sumOf(content), f.Name())
	}

	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(text.String()), 0o644)
}

// plugin compiles kubectl-holdfast for operators' machines, and packs each with the license. It writes holdfast.yaml,
// the manifest for krew, the manager of kubectl's plugins.
func (r release) plugin(ctx context.Context) error {
	var platforms []any
	for _, system := range []string{"darwin", "linux", "windows"} {
		for _, a := range operators(r.architectures) {
			name := fmt.Sprintf("kubectl-holdfast-%s-%s-%s.tar.gz", r.version, system, a)
			program := "kubectl-holdfast" + map[string]string{"windows": ".exe"}[system]
			sum, err := r.packPlugin(ctx, system, a, filepath.Join(r.out, name))
			if err != nil {
				return fmt.Errorf("plugin for %s-%s: %w", system, a, err)
			}

			platforms = append(platforms, map[string]any{
				"selector": map[string]any{"matchLabels": map[string]string{"os": system, "arch": a}},
				"uri":      "https://" + module + "/releases/download/v" + r.version + "/" + name,
				"sha256":   sum,
				"bin":      program,
			})
		}
	}

	manifest, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]string{"name": "holdfast"},
		"spec": map[string]any{
			"version":          "v" + r.version,
			"homepage":         "https://" + module,
			"platforms":        platforms,
			"shortDescription": "Explain why a load balancer address answers or not",
			"description": "Explains each decision of the load balancer Holdfast about a Service, and what a change " +
				"would change.",
		},
	})
	if err != nil {
		return err
	}

	return os.WriteFile(filepath.Join(r.out, "holdfast.yaml"), manifest, 0o644)
}

// operators returns the architectures of operators' machines.
func operators(architectures []string) (out []string) {
	for _, a := range architectures {
		if a == "amd64" || a == "arm64" {
			out = append(out, a)
		}
	}

	return out
}

// packPlugin makes the archive of one platform, and returns its checksum.
func (r release) packPlugin(ctx context.Context, system, architecture, archive string) (sum string, err error) {
	dir, err := os.MkdirTemp(r.out, "plugin-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	err = os.Link("LICENSE", filepath.Join(dir, "LICENSE"))
	if err != nil {
		return "", err
	}

	err = r.build(ctx, system, architecture, dir, "./kubectl-holdfast")
	if err != nil {
		return "", err
	}

	err = oci.Archive(archive, dir, "", r.date)
	if err != nil {
		return "", err
	}

	packed, err := os.ReadFile(archive)
	return sumOf(packed), err
}
