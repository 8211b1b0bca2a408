package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// packChart packs the chart with the release's version. It removes the charts of others, so that dist/ has one.
func (r release) packChart(ctx context.Context) (err error) {
	others, _ := filepath.Glob(filepath.Join(r.out, "holdfast-*.tgz")) // the pattern is well-formed
	for _, o := range others {
		if err := os.Remove(o); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, "holdfast")
	if err := os.CopyFS(copied, os.DirFS(chartDir)); err != nil {
		return err
	}
	if err := r.nameImages(copied); err != nil {
		return err
	}
	// Helm puts the times of the files into the archive.
	err = filepath.WalkDir(copied, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, r.date, r.date))
	})
	if err != nil {
		return err
	}
	argv := []string{
		r.helm,
		"package",
		copied,
		"--version",
		r.version,
		"--app-version",
		r.version,
		"--destination",
		r.out,
	}
	if _, err := output(ctx, argv...); err != nil {
		return err
	}
	// Helm puts the time of the archive into what it pushes.
	return os.Chtimes(r.packed(), r.date, r.date)
}

// nameImages writes into a copy of the chart where the images are.
func (r release) nameImages(dir string) error {
	for _, name := range []string{"values.yaml", "README.md"} {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		named := strings.NewReplacer(
			// The name of the first image begins the second's, whose pair must come first.
			r.chart.Proxy.Image.Repository, r.repository(proxies), r.chart.Image.Repository, r.repository(daemons),
		).Replace(string(text))
		if err := os.WriteFile(file, []byte(named), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manifests writes install.yaml, and uninstall.yaml, whose Job takes down what the speakers have in kernels and
// routers.
func (r release) manifests(ctx context.Context) error {
	text, err1 := os.ReadFile(filepath.Join("config", "default", "namespace.yaml"))
	install, err2 := r.template(ctx, "--include-crds")
	uninstall, err3 := r.template(ctx, "--set", "hooks=Always", "--show-only", "templates/uninstall.yaml")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	home := "---\n" + string(text)
	return errors.Join(
		os.WriteFile(filepath.Join(r.out, "install.yaml"), []byte(home+install), 0o644),
		os.WriteFile(filepath.Join(r.out, "uninstall.yaml"), []byte(home+hooks.ReplaceAllString(uninstall, "")), 0o644),
	)
}

// template renders the packed chart for the namespace into which docs/install.md installs with Helm.
func (r release) template(ctx context.Context, args ...string) (string, error) {
	out, err := output(
		ctx,
		append([]string{r.helm, "template", "holdfast", r.packed(), "--namespace", "holdfast-system"}, args...)...)
	return out + "\n", err
}

// hooks are the lines of the annotations by which Helm knows hooks; without Helm they mean nothing.
var hooks = regexp.MustCompile(`(?m)^(.*helm\.sh/hook.*| *annotations:)\n`)
