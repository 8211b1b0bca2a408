package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/release/oci"
	"sigs.k8s.io/yaml"
)

// compile builds the programs for an architecture.
func (r release) compile(ctx context.Context, architecture, dir string) error {
	return r.build(ctx, "linux", architecture, dir, slices.Sorted(maps.Values(programs))...)
}

// build builds packages: static, without paths of this machine, and stamped.
func (r release) build(ctx context.Context, system, architecture, dir string, packages ...string) error {
	// In one order: the arguments of the linker are part of a program's identity.
	const stamp = " -X " + module + "/internal/daemon."
	arguments := "-s -w" + stamp + "version=" + r.version + stamp + "commit=" + r.commit + stamp + "date=" + r.date.Format(time.RFC3339) +
		" -X main.version=" + r.version
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", arguments, "-o", dir + "/"}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	// What the builder has set for himself changes no program.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "GOFIPS140=off",
		"GOOS="+system, "GOARCH="+architecture, "GOAMD64=v1", "GOARM64=v8.0")
	_, err := outputOf(cmd)
	return err
}

// image compiles the programs and packs them.
func (r release) image(ctx context.Context) error {
	chart, err := readChart()
	if err != nil {
		return err
	}
	image := r.describe(chart, chart.repository, "Apache-2.0")
	for _, a := range r.sorted() {
		if err := r.compile(ctx, a, r.binDir(a)); err != nil {
			return err
		}
		files := map[string]string{}
		for name := range programs {
			files["/"+name] = filepath.Join(r.binDir(a), name)
		}
		image.Platforms = append(image.Platforms, oci.Platform{Architecture: a, Files: files})
	}
	return oci.Write(r.archive(), image)
}

// proxyImage compiles the proxies' program and packs it with HAProxy.
func (r release) proxyImage(ctx context.Context) (err error) {
	chart, err := readChart()
	if err != nil {
		return err
	}
	image := r.describe(chart, chart.proxyRepository, "Apache-2.0 AND GPL-2.0-or-later AND LGPL-2.1-or-later")
	image.Entrypoint, image.User = []string{"/holdfast-proxy"}, "65532:65532"
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, a := range r.sorted() {
		files, err := haproxyFiles(ctx, a, filepath.Join(dir, a))
		if err != nil {
			return err
		}
		if err := r.build(ctx, "linux", a, r.binDir(a), proxyPackage); err != nil {
			return err
		}
		files["/holdfast-proxy"] = filepath.Join(r.binDir(a), proxyProgram)
		image.Platforms = append(image.Platforms, oci.Platform{Architecture: a, Files: files})
	}
	return oci.Write(r.proxyArchive(), image)
}

// describe returns an image without files.
func (r release) describe(chart chart, repository, licenses string) oci.Image {
	return oci.Image{Name: repository + ":" + r.version, Created: r.date, Labels: map[string]string{
		"org.opencontainers.image.title":       path.Base(repository),
		"org.opencontainers.image.description": chart.description,
		"org.opencontainers.image.source":      "https://" + module,
		"org.opencontainers.image.licenses":    licenses,
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.date.Format(time.RFC3339),
	}}
}

// chartDir is the chart's source.
var chartDir = filepath.Join("charts", "holdfast")

// chart is what a release takes from the chart's source.
type chart struct {
	description     string
	repository      string // of the image
	proxyRepository string // of the proxies' image
}

func readChart() (chart, error) {
	var about struct{ Description string }
	var values struct {
		Image struct{ Repository string }
		Proxy struct{ Image struct{ Repository string } }
	}
	for file, into := range map[string]any{"Chart.yaml": &about, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(chartDir, file))
		if err != nil {
			return chart{}, err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return chart{}, fmt.Errorf("read %s of the chart: %w", file, err)
		}
	}
	return chart{about.Description, values.Image.Repository, values.Proxy.Image.Repository}, nil
}
