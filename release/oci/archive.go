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

// Archive writes all files below a directory as a tar, each below prefix, sorted, with one time, and no owner;
// compressed if the file's name ends so.
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
	// It walks in lexical order.
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return add(w, path.Join(prefix, name), filepath.Join(dir, name), at)
	})
	return errors.Join(err, w.Close())
}

// add adds a file. The umask of whoever made the file is no property of it.
func add(w *tar.Writer, name, source string, at time.Time) error {
	content, err1 := os.ReadFile(source)
	info, err2 := os.Stat(source)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	err := w.WriteHeader(
		&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: at, Typeflag: tar.TypeReg},
	)
	if err == nil {
		_, err = w.Write(content)
	}
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
		if err := w.WriteHeader(&tar.Header{Name: d + "/", Mode: dirs[d], ModTime: at, Typeflag: tar.TypeDir}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if err := add(w, name[1:], sources[name], at); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }, nil
}
