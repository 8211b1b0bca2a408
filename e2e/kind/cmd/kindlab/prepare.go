package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/kind"
	"github.com/holdfast-lb/holdfast/e2e/kind/engine"
	"github.com/holdfast-lb/holdfast/e2e/kind/nodeimage"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
)

type options struct {
	proxy, image, outside string
}

// prepare finds what a cluster is made of, and makes what is not there: Docker, kind, the images.
func prepare(ctx context.Context, o options) (*place, kind.Config, error) {
	p, err := newPlace()
	if err != nil {
		return nil, kind.Config{}, err
	}
	config := kind.Config{
		ProxyMode:    o.proxy,
		Repo:         p.repo,
		Dir:          p.runDir(),
		NodeImage:    o.image,
		OutsideImage: o.outside,
	}
	compiler := toolset.Builder{Repo: p.repo, Progress: os.Stdout}
	own, answers := p.engine != nil, dockerAnswers()
	if _, err := kind.Open(p.runDir()); err == nil && (own || answers) {
		return nil, config, errUp
	}
	if !own && !answers {
		if p.engine, err = engine.Start(ctx, p.cache, compiler); err != nil {
			return nil, config, err
		}
		own = true
	}
	tools, err := compile(ctx, compiler, own && o.image == "")
	if err != nil {
		return nil, config, err
	}
	for _, set := range []string{"kind", "kubernetes", "helm"} {
		if dir := tools[set]; dir != "" {
			p.Tools = append(p.Tools, dir)
		}
	}
	if err := p.check(); err != nil {
		return nil, config, err
	}
	programs, err := compileOwn(ctx, compiler, p.cache)
	if err != nil {
		return nil, config, err
	}
	config.Echo = filepath.Join(programs, "echo")
	images := nodeimage.Builder{Cache: filepath.Join(p.cache, "build"), Tools: tools, Env: p.env(), Progress: os.Stdout}
	if own {
		images.Debootstrap = p.engine.Root
	}
	if own && o.image == "" {
		if images.KindFiles, err = kindFiles(ctx, p.repo); err != nil {
			return nil, config, err
		}
		images.Tools["pause"] = programs
		if config.NodeImage, err = images.Node(ctx); err != nil {
			return nil, config, err
		}
	}
	if o.outside == "" {
		if config.OutsideImage, err = images.Outside(ctx); err != nil {
			return nil, config, err
		}
	}
	p.Outside = config.OutsideImage
	return p, config, p.save()
}

func dockerAnswers() bool { return exec.Command("docker", "version").Run() == nil }

// compile compiles what is not in PATH, and for a node image everything.
func compile(ctx context.Context, compiler toolset.Builder, nodeImage bool) (map[string]string, error) {
	var sets []toolset.Set
	for _, s := range append(toolset.Cluster, toolset.Kind...) {
		program := map[string]string{"kind": "kind", "kubernetes": "kubectl", "helm": "helm"}[s.Name]
		if _, err := exec.LookPath(program); nodeImage || program != "" && err != nil {
			sets = append(sets, s)
		}
	}
	return compiler.Build(ctx, sets)
}

// kindFiles returns the directory of what kind's base image is made of, in the sources of the pinned version.
func kindFiles(ctx context.Context, repo string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind")
	cmd.Dir = filepath.Join(repo, "e2e/lab/tools/kind")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the sources of kind: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "images/base/files"), nil
}

// compileOwn compiles what keeps the namespaces of a pod, and the application of the tests.
func compileOwn(ctx context.Context, compiler toolset.Builder, cache string) (dir string, err error) {
	dir = filepath.Join(cache, "programs")
	err = compiler.Compile(ctx, compiler.Repo, filepath.Join(cache, "tmp"), false,
		"-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "./e2e/lab/cmd/pause", "./e2e/lab/cmd/echo")
	return dir, err
}

// stopEngine stops the engine that Start started; the machine's own is left alone.
func stopEngine(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return engine.Stop(ctx)
}

var errUp = errors.New("a kind cluster is up already: kindlab down takes it down")

var errNoDocker = errors.New("no Docker Engine answers, and none of ours is up")
