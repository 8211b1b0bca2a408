package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/release/oci"
	"sigs.k8s.io/yaml"
)

// image is an image of the release.
type image struct {
	// archive is the name of its file.
	archive    string
	licenses   string
	entrypoint []string
	user       string
	// programs are the packages of its programs, by path in the image.
	programs map[string]string
	// haproxy reports whether it has HAProxy.
	haproxy bool
}

// daemons is the image of the daemons, proxies the proxies' image.
var (
	daemons = image{
		archive:  "holdfast.tar",
		licenses: "Apache-2.0",
		programs: map[string]string{
			"/controller": "./controller",
			"/speaker":    "./speaker",
			"/heartbeat":  "./speaker/heartbeat",
			"/bgp":        "./speaker/bgp",
		},
	}
	proxies = image{
		archive:    "holdfast-proxy.tar",
		licenses:   "Apache-2.0 AND GPL-2.0-or-later AND LGPL-2.1-or-later",
		entrypoint: []string{"/holdfast-proxy"},
		user:       "65532:65532",
		programs:   map[string]string{"/holdfast-proxy": "./proxy"},
		haproxy:    true,
	}
)

// everywhere are the architectures of a release. HAProxy is pinned for some of them.
var everywhere = []string{"amd64", "arm", "arm64", "ppc64le", "s390x"}

// platforms returns the architectures of an image.
func (r release) platforms(i image) (out []string) {
	for _, a := range r.architectures {
		if !i.haproxy || len(r.pins[a]) > 0 {
			out = append(out, a)
		}
	}

	return out
}

// compile compiles the programs of an image.
func (r release) compile(ctx context.Context, i image, architecture, dir string) error {
	packages := slices.Sorted(maps.Values(i.programs))
	return r.build(ctx, "linux", architecture, dir, packages...)
}

// build builds packages: static, without paths of this machine, and stamped.
func (r release) build(ctx context.Context, system, architecture, dir string, packages ...string) error {
	// The order is fixed: the arguments of the linker are part of a program's identity.
	const stamp = " -X " + module + "/internal/daemon."
	arguments := "-s -w" + stamp + "version=" + r.version + stamp + "commit=" + r.commit +
		stamp + "date=" + r.date.Format(time.RFC3339) + " -X main.version=" + r.version
	// These replace the builder's own settings, so that the programs do not depend on them.
	args := []string{
		"env",
		"CGO_ENABLED=0",
		"GOWORK=off",
		"GOFLAGS=-mod=readonly",
		"GOFIPS140=off",
		"GOOS=" + system,
		"GOARCH=" + architecture,
		"GOAMD64=v1",
		"GOARM64=v8.0",
		"GOARM=7",
		"GOPPC64=power8",
		"go",
		"build",
		"-trimpath",
		"-buildvcs=false",
		"-ldflags",
		arguments,
		"-o",
		dir + "/",
	}
	_, err := output(ctx, append(args, packages...)...)
	return err
}

// pack compiles the programs of an image, and writes its archive.
func (r release) pack(ctx context.Context, i image) (err error) {
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	platforms := r.platforms(i)
	if len(platforms) == 0 {
		return fmt.Errorf("%s has packages for none of %v", pinFile, r.architectures)
	}

	out := oci.Image{
		Name:       r.name(i),
		Created:    r.date,
		Entrypoint: i.entrypoint,
		User:       i.user,
		Labels:     r.labels(i),
	}
	for _, a := range platforms {
		files, err := r.filesFor(ctx, i, a, filepath.Join(dir, a))
		if err != nil {
			return err
		}

		out.Platforms = append(out.Platforms, oci.Platform{Architecture: a, Files: files})
	}

	return oci.Write(filepath.Join(r.out, i.archive), out)
}

// labels returns the labels of an image.
func (r release) labels(i image) map[string]string {
	title := path.Base(r.repository(i))
	return map[string]string{
		"org.opencontainers.image.title":       title,
		"org.opencontainers.image.description": r.chart.Description,
		"org.opencontainers.image.source":      "https://" + module,
		"org.opencontainers.image.licenses":    i.licenses,
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.date.Format(time.RFC3339),
	}
}

// filesFor returns the files of an image for an architecture, by path in the image. It extracts packages into dir.
func (r release) filesFor(ctx context.Context, i image, architecture, dir string) (map[string]string, error) {
	files := map[string]string{}
	if i.haproxy {
		var err error
		files, err = haproxyFiles(ctx, r.pins[architecture], dir)
		if err != nil {
			return nil, err
		}
	}

	err := r.compile(ctx, i, architecture, r.binDir(architecture))
	if err != nil {
		return nil, err
	}

	for file, program := range i.programs {
		files[file] = filepath.Join(r.binDir(architecture), path.Base(program))
	}

	return files, nil
}

// chartDir is the chart's source.
var chartDir = filepath.Join("charts", "holdfast")

// chart are the values of the chart's source that a release uses.
type chart struct {
	Description string
	Image       struct{ Repository string }
	Proxy       struct{ Image struct{ Repository string } }
}

// name returns the reference of an image.
func (r release) name(i image) string {
	return r.repository(i) + ":" + r.version
}

// repository returns the repository of an image: in the registry of the flag, or else of the chart's source.
func (r release) repository(i image) string {
	source := r.chart.Image.Repository
	if i.haproxy {
		source = r.chart.Proxy.Image.Repository
	}

	if r.push == "" {
		return source
	}

	return r.push + "/" + path.Base(source)
}

// readChart reads the chart's source.
func readChart() (c chart, err error) {
	for _, file := range []string{"Chart.yaml", "values.yaml"} {
		text, err := os.ReadFile(filepath.Join(chartDir, file))
		if err == nil {
			err = yaml.Unmarshal(text, &c)
		}

		if err != nil {
			return c, fmt.Errorf("read %s of the chart: %w", file, err)
		}
	}

	return c, nil
}
