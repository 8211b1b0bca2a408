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

// packChart packs the chart with the release's version. It removes the charts of other versions.
func (r release) packChart(ctx context.Context) (err error) {
	others, _ := filepath.Glob(filepath.Join(r.out, "holdfast-*.tgz")) // the pattern is well-formed
	for _, o := range others {
		err := os.Remove(o)
		if err != nil {
			return err
		}
	}

	dir, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	copied := filepath.Join(dir, "holdfast")
	err = os.CopyFS(copied, os.DirFS(chartDir))
	if err != nil {
		return err
	}

	err = r.nameImages(copied)
	if err != nil {
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
	_, err = output(ctx, argv...)
	if err != nil {
		return err
	}

	// Helm puts the time of the archive into the manifest that it pushes.
	return os.Chtimes(r.packed(), r.date, r.date)
}

// nameImages writes the references of the images into a copy of the chart.
func (r release) nameImages(dir string) error {
	for _, name := range []string{"values.yaml", "README.md"} {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}

		// The name of the daemons' image is the beginning of the proxies', whose pair must come first.
		references := strings.NewReplacer(
			r.chart.Proxy.Image.Repository, r.repository(proxies),
			r.chart.Image.Repository, r.repository(daemons),
		)
		named := references.Replace(string(text))
		err = os.WriteFile(file, []byte(named), 0o644)
		if err != nil {
			return err
		}
	}

	return nil
}

// manifests writes install.yaml and uninstall.yaml. The Job of uninstall.yaml removes the state of the speakers from
// kernels and routers.
func (r release) manifests(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join("config", "default", "namespace.yaml"))
	if err != nil {
		return err
	}

	install, err := r.template(ctx, "--include-crds")
	if err != nil {
		return err
	}

	uninstall, err := r.template(ctx, "--set", "hooks=Always", "--show-only", "templates/uninstall.yaml")
	if err != nil {
		return err
	}

	uninstall = hooks.ReplaceAllString(uninstall, "")
	namespace := "---\n" + string(text)
	return errors.Join(
		os.WriteFile(filepath.Join(r.out, "install.yaml"), []byte(namespace+install), 0o644),
		os.WriteFile(filepath.Join(r.out, "uninstall.yaml"), []byte(namespace+uninstall), 0o644),
	)
}

// template renders the packed chart for the namespace into which docs/install.md installs with Helm.
func (r release) template(ctx context.Context, args ...string) (string, error) {
	argv := []string{r.helm, "template", "holdfast", r.packed(), "--namespace", "holdfast-system"}
	out, err := output(ctx, append(argv, args...)...)
	return out + "\n", err
}

// hooks matches the lines of the annotations of Helm's hooks. Without Helm they have no effect.
var hooks = regexp.MustCompile(`(?m)^(.*helm\.sh/hook.*| *annotations:)\n`)
