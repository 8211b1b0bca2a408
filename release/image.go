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
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/release/oci"
	"sigs.k8s.io/yaml"
)

// image is an image of the release: programs, and perhaps HAProxy.
type image struct {
	archive    string // the name of its file
	licenses   string
	entrypoint []string
	user       string
	programs   map[string]string // their packages, by their paths in the image
	haproxy    bool
}

// daemons is the image of the daemons, proxies the proxies' image.
var (
	daemons = image{archive: "holdfast.tar", licenses: "Apache-2.0", programs: map[string]string{
		"/controller": "./controller",
		"/speaker":    "./speaker",
		"/heartbeat":  "./speaker/heartbeat",
		"/bgp":        "./speaker/bgp",
	}}
	proxies = image{archive: "holdfast-proxy.tar", licenses: "Apache-2.0 AND GPL-2.0-or-later AND LGPL-2.1-or-later",
		entrypoint: []string{
			"/holdfast-proxy",
		}, user: "65532:65532", programs: map[string]string{"/holdfast-proxy": "./proxy"}, haproxy: true}
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

func (r release) compile(ctx context.Context, i image, architecture, dir string) error {
	return r.build(ctx, "linux", architecture, dir, slices.Sorted(maps.Values(i.programs))...)
}

// build builds packages: static, without paths of this machine, and stamped.
func (r release) build(ctx context.Context, system, architecture, dir string, packages ...string) error {
	// In one order: the arguments of the linker are part of a program's identity.
	const stamp = " -X " + module + "/internal/daemon."
	arguments := "-s -w" + stamp + "version=" + r.version + stamp + "commit=" + r.commit +
		stamp + "date=" + r.date.Format(time.RFC3339) + " -X main.version=" + r.version
	// What the builder has set for himself changes no program.
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

func (r release) pack(ctx context.Context, i image) (err error) {
	name := r.name(i)
	out := oci.Image{Name: name, Created: r.date, Entrypoint: i.entrypoint, User: i.user, Labels: map[string]string{
		"org.opencontainers.image.title":       path.Base(strings.TrimSuffix(name, ":"+r.version)),
		"org.opencontainers.image.description": r.chart.Description,
		"org.opencontainers.image.source":      "https://" + module,
		"org.opencontainers.image.licenses":    i.licenses,
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.date.Format(time.RFC3339),
	}}
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	platforms := r.platforms(i)
	if len(platforms) == 0 {
		return fmt.Errorf("%s has packages for none of %v", pinFile, r.architectures)
	}
	for _, a := range platforms {
		files := map[string]string{}
		if i.haproxy {
			files, err = haproxyFiles(ctx, r.pins[a], filepath.Join(dir, a))
		}
		if err == nil {
			err = r.compile(ctx, i, a, r.binDir(a))
		}
		if err != nil {
			return err
		}
		for file, program := range i.programs {
			files[file] = filepath.Join(r.binDir(a), path.Base(program))
		}
		out.Platforms = append(out.Platforms, oci.Platform{Architecture: a, Files: files})
	}
	return oci.Write(filepath.Join(r.out, i.archive), out)
}

// chartDir is the chart's source.
var chartDir = filepath.Join("charts", "holdfast")

// chart is what a release takes from the chart's source.
type chart struct {
	Description string
	Image       struct{ Repository string }
	Proxy       struct{ Image struct{ Repository string } }
}

func (r release) name(i image) string { return r.repository(i) + ":" + r.version }

// repository returns where an image is: where it is pushed, or else where the chart's source says.
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
