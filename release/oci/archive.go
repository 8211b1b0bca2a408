package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Archive writes all files below a directory as a tar, each below prefix, sorted, with one time, and without an owner.
// It compresses the tar if the file's name ends in .gz.
func Archive(file, dir, prefix string, at time.Time) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	w := tar.NewWriter(f)
	if strings.HasSuffix(file, ".gz") {
		z := gzip.NewWriter(f)
		defer func() { err = errors.Join(err, z.Close()) }()
		w = tar.NewWriter(z)
	}

	// WalkDir walks in lexical order.
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		packed := path.Join(prefix, name)
		return add(w, packed, filepath.Join(dir, name), at)
	})
	return errors.Join(err, w.Close())
}

// add adds a file. Its mode does not depend on the umask of the builder.
func add(w *tar.Writer, name, source string, at time.Time) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}

	info, err := os.Stat(source)
	if err != nil {
		return err
	}

	mode := int64(0o644)
	isProgram := info.Mode()&0o100 != 0
	if isProgram {
		mode = 0o755
	}

	err = w.WriteHeader(&tar.Header{
		Name:     name,
		Mode:     mode,
		Size:     int64(len(content)),
		ModTime:  at,
		Typeflag: tar.TypeReg,
	})
	if err != nil {
		return err
	}

	_, err = w.Write(content)
	return err
}

// files returns an uncompressed layer: the files, their parents, and /tmp.
func files(sources map[string]string, at time.Time) (func() (io.ReadCloser, error), error) {
	dirs := map[string]int64{}
	for name := range sources {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return nil, fmt.Errorf("path %q: want a clean absolute path", name)
		}

		for d := path.Dir(name[1:]); d != "."; d = path.Dir(d) {
			dirs[d] = 0o755
		}
	}

	dirs["tmp"] = 0o1777
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		err := w.WriteHeader(&tar.Header{
			Name:     d + "/",
			Mode:     dirs[d],
			ModTime:  at,
			Typeflag: tar.TypeDir,
		})
		if err != nil {
			return nil, err
		}
	}

	for _, name := range slices.Sorted(maps.Keys(sources)) {
		err := add(w, name[1:], sources[name], at)
		if err != nil {
			return nil, err
		}
	}

	err := w.Close()
	if err != nil {
		return nil, err
	}

	return func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, nil
}
