package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testImage(t *testing.T) Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("content"), 0o700); err != nil {
		t.Fatal(err)
	}
	return Image{
		Name:       "docker.io/lab/test:v1",
		Entrypoint: []string{"/usr/bin/program"},
		User:       "65532",
		Files:      map[string]File{"/usr/bin/program": {Source: path, Mode: 0o755}, "/a": {Source: path, Mode: 0o600}},
	}
}

func readTar(t *testing.T, r io.Reader) (names []string, headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = make(map[string]*tar.Header), make(map[string][]byte)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names, headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		headers[h.Name], contents[h.Name] = h, b
	}
}

func TestWriteIsDeterministic(t *testing.T) {
	img := testImage(t)
	var first, second bytes.Buffer
	if err := Write(&first, img); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(img.Files["/a"].Source, later, later); err != nil {
		t.Fatal(err)
	}
	if err := Write(&second, img); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same image twice gives different bytes")
	}
}

func TestWriteLayout(t *testing.T) {
	var buf bytes.Buffer
	if err := Write(&buf, testImage(t)); err != nil {
		t.Fatal(err)
	}
	_, _, files := readTar(t, &buf)
	blob := func(d descriptor, v any) []byte {
		t.Helper()
		b := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if digest(b) != d.Digest || len(b) != d.Size {
			t.Fatalf("blob of %s: wrong digest or size", d.MediaType)
		}
		if v != nil {
			if err := json.Unmarshal(b, v); err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	var idx index
	if err := json.Unmarshal(files["index.json"], &idx); err != nil {
		t.Fatal(err)
	}
	if got := idx.Manifests[0].Annotations[nameAnnotation]; got != "docker.io/lab/test:v1" {
		t.Errorf("name %q", got)
	}
	var man manifest
	blob(idx.Manifests[0], &man)
	var cfg config
	blob(man.Config, &cfg)
	if cfg.OS != "linux" || cfg.Config.User != "65532" || cfg.Config.Entrypoint[0] != "/usr/bin/program" {
		t.Errorf("configuration %+v", cfg)
	}
	gz, err := gzip.NewReader(bytes.NewReader(blob(man.Layers[0], nil)))
	if err != nil {
		t.Fatal(err)
	}
	layerTar, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	if digest(layerTar) != cfg.RootFS.DiffIDs[0] {
		t.Error("diff_id is not the digest of the uncompressed layer")
	}
	names, headers, contents := readTar(t, bytes.NewReader(layerTar))
	if got, want := strings.Join(names, " "), "tmp/ usr/ usr/bin/ a usr/bin/program"; got != want {
		t.Errorf("layer has %q, want %q", got, want)
	}
	if headers["tmp/"].Mode != 0o1777 || headers["usr/bin/program"].Mode != 0o755 || headers["a"].Mode != 0o600 {
		t.Error("wrong modes in layer")
	}
	if string(contents["usr/bin/program"]) != "content" {
		t.Error("wrong content in layer")
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, img := range map[string]Image{
		"no name":       {Files: map[string]File{"/a": {Source: os.Args[0]}}},
		"relative path": {Name: "x", Files: map[string]File{"a": {Source: os.Args[0]}}},
		"unclean path":  {Name: "x", Files: map[string]File{"/b/../a": {Source: os.Args[0]}}},
		"no such file":  {Name: "x", Files: map[string]File{"/a": {Source: "/nonexistent"}}},
	} {
		if err := Write(io.Discard, img); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
