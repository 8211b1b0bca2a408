package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
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
	image := oci.Image{Name: chart.repository + ":" + r.version, Created: r.date, Labels: map[string]string{
		"org.opencontainers.image.title":       chart.name,
		"org.opencontainers.image.description": chart.description,
		"org.opencontainers.image.source":      "https://" + module,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.date.Format(time.RFC3339),
	}}
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

// chartDir is the chart's source.
var chartDir = filepath.Join("charts", "holdfast")

// chart is what a release takes from the chart's source.
type chart struct {
	name, description string
	repository        string // of the image
}

func readChart() (chart, error) {
	var about struct{ Name, Description string }
	var values struct{ Image struct{ Repository string } }
	for file, into := range map[string]any{"Chart.yaml": &about, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(chartDir, file))
		if err != nil {
			return chart{}, err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return chart{}, fmt.Errorf("read %s of the chart: %w", file, err)
		}
	}
	return chart{about.Name, about.Description, values.Image.Repository}, nil
}
