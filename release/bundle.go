package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-lb/holdfast/release/oci"
)

//go:embed load.sh
var loadScript string

// airGap packs all that an installation without a registry needs.
func (r release) airGap(context.Context) (err error) {
	chart, err := readChart()
	if err != nil {
		return err
	}
	// Beside the files, so that links suffice.
	dir, err := os.MkdirTemp(r.out, "airgap-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, file := range []string{r.archive(), r.proxyArchive(), r.packed(), filepath.Join(r.out, "install.yaml"), filepath.Join(r.out, "uninstall.yaml")} {
		if err := os.Link(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			return err
		}
	}
	script := strings.NewReplacer("@IMAGE@", chart.repository+":"+r.version, "@PROXY@", chart.proxyRepository+":"+r.version).Replace(loadScript)
	if err := os.WriteFile(filepath.Join(dir, "load.sh"), []byte(script), 0o755); err != nil {
		return err
	}
	if err := sums(dir); err != nil {
		return err
	}
	name := "holdfast-" + r.version
	return oci.Archive(filepath.Join(r.out, name+"-airgap.tar"), dir, name, r.date)
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
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(content), f.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(text.String()), 0o644)
}
