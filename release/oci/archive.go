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

// Archive writes all files below a directory as a tar, each below prefix, sorted, with one time, and no owner; compressed if the file's
// name ends so.
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
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		from, err := os.Open(name)
		if err != nil {
			return err
		}
		defer from.Close()
		err = w.WriteHeader(&tar.Header{Name: path.Join(prefix, filepath.ToSlash(relative)), Mode: mode(info), Size: info.Size(), ModTime: at, Typeflag: tar.TypeReg})
		if err != nil {
			return err
		}
		_, err = io.Copy(w, from)
		return err
	})
	return errors.Join(err, w.Close())
}

// mode is a file's in an archive: the umask of whoever made the file is no property of it.
func mode(info fs.FileInfo) int64 {
	if info.Mode()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// files returns an uncompressed layer: the files, their parents, and /tmp.
func files(sources map[string]string, at time.Time) (func() (io.ReadCloser, error), error) {
	dirs := map[string]int64{"tmp": 0o1777}
	for name := range sources {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return nil, fmt.Errorf("path %q: want a clean absolute path", name)
		}
		for d := path.Dir(name[1:]); d != "."; d = path.Dir(d) {
			if _, there := dirs[d]; !there {
				dirs[d] = 0o755
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		if err := w.WriteHeader(&tar.Header{Name: d + "/", Mode: dirs[d], ModTime: at, Typeflag: tar.TypeDir}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		info, err := os.Stat(sources[name])
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(sources[name])
		if err != nil {
			return nil, err
		}
		err = w.WriteHeader(&tar.Header{Name: name[1:], Mode: mode(info), Size: int64(len(content)), ModTime: at, Typeflag: tar.TypeReg})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }, nil
}
