package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func testImage(t *testing.T, architectures ...string) Image {
	t.Helper()
	img := Image{
		Name: "docker.io/lab/test:v1", Entrypoint: []string{"/usr/bin/program"}, User: "65532",
		Created: time.Unix(1_700_000_000, 0).UTC(), Labels: map[string]string{"a": "b"},
	}
	for _, a := range architectures {
		source, text := filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "text")
		for file, mode := range map[string]os.FileMode{source: 0o700, text: 0o600} {
			must(t, os.WriteFile(file, []byte("for "+a), mode))
		}
		img.Platforms = append(img.Platforms, Platform{
			Architecture: a, Files: map[string]string{"/usr/bin/program": source, "/a": text},
		})
	}
	return img
}

func pack(t *testing.T, img Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	must(t, Write(file, img))
	return file
}

func contents(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	return b
}

// unpack extracts an archive into a directory.
func unpack(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(contents(t, file))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		must(t, err)
		b, err := io.ReadAll(r)
		must(t, err)
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		must(t, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o600)))
	}
}

// open reads an archive, which has one image by its names, as a tool does.
func open(t *testing.T, file string) (layout.Path, v1.Descriptor) {
	t.Helper()
	path, err := layout.FromPath(unpack(t, file))
	must(t, err)
	index, err := path.ImageIndex()
	must(t, err)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	must(t, err)
	if len(manifest.Manifests) != 1 {
		t.Fatalf("index %+v", manifest)
	}
	names := map[string]string{
		"io.containerd.image.name": "docker.io/lab/test:v1", "org.opencontainers.image.ref.name": "v1",
	}
	if diff := cmp.Diff(names, manifest.Manifests[0].Annotations); diff != "" {
		t.Errorf("names -want +got\n%s", diff)
	}
	return path, manifest.Manifests[0]
}

func TestWriteIsReproducible(t *testing.T) {
	img := testImage(t, "arm64", "amd64")
	first := contents(t, pack(t, img))
	later := time.Now().Add(time.Hour)
	for _, p := range img.Platforms {
		must(t, os.Chtimes(p.Files["/a"], later, later))
	}
	img.Platforms[0], img.Platforms[1] = img.Platforms[1], img.Platforms[0]
	if !bytes.Equal(first, contents(t, pack(t, img))) {
		t.Error("the same image twice gives different bytes")
	}
}

func TestWriteOne(t *testing.T) {
	path, top := open(t, pack(t, testImage(t, "arm64")))
	if top.MediaType != types.OCIManifestSchema1 || top.Platform.Architecture != "arm64" {
		t.Fatalf("index of %+v", top)
	}
	image, err := path.Image(top.Digest)
	must(t, err)
	checkImage(t, image, "arm64")
	checkDocker(t, path, "docker.io/lab/test:v1")
}

func TestWriteSeveral(t *testing.T) {
	path, top := open(t, pack(t, testImage(t, "arm64", "amd64")))
	if top.MediaType != types.OCIImageIndex {
		t.Fatalf("index of %+v", top)
	}
	index, err := path.ImageIndex()
	if err == nil {
		index, err = index.ImageIndex(top.Digest)
	}
	must(t, err)
	inner, err := index.IndexManifest()
	must(t, err)
	for i, architecture := range []string{"amd64", "arm64"} {
		if p := inner.Manifests[i].Platform; p == nil || p.Architecture != architecture || p.OS != "linux" {
			t.Errorf("platform %+v", p)
		}
		image, err := index.Image(inner.Manifests[i].Digest)
		must(t, err)
		checkImage(t, image, architecture)
	}
	checkDocker(t, path, "docker.io/lab/test:v1-amd64", "docker.io/lab/test:v1-arm64")
}

// TestWriteVariant: an image for arm says in the index and in itself that it needs ARMv7, and another one has no
// variant.
func TestWriteVariant(t *testing.T) {
	path, top := open(t, pack(t, testImage(t, "arm", "s390x")))
	index, err := path.ImageIndex()
	if err == nil {
		index, err = index.ImageIndex(top.Digest)
	}
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	for i, want := range []string{"v7", ""} {
		image, err := index.Image(manifest.Manifests[i].Digest)
		must(t, err)
		config, err := image.ConfigFile()
		must(t, err)
		if platform := manifest.Manifests[i].Platform; platform.Variant != want || config.Variant != want {
			t.Errorf("%s: variants %q and %q, want %q", platform.Architecture, platform.Variant, config.Variant, want)
		}
	}
}

func checkImage(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	config, err := image.ConfigFile()
	must(t, err)
	if config.OS != "linux" || config.Architecture != architecture || config.Config.User != "65532" ||
		config.Config.Labels["a"] != "b" || config.Config.Entrypoint[0] != "/usr/bin/program" ||
		config.Created.Unix() != 1_700_000_000 {
		t.Errorf("configuration %+v", config)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	unpacked, err := layers[0].Uncompressed()
	must(t, err)
	var got []string
	for r := tar.NewReader(unpacked); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		b, err := io.ReadAll(r)
		must(t, err)
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+string(b))
	}
	want := []string{"dtrwxrwxrwx tmp/ ", "drwxr-xr-x usr/ ", "drwxr-xr-x usr/bin/ ", "-rw-r--r-- a for " + architecture,
		"-rwxr-xr-x usr/bin/program for " + architecture}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer -want +got\n%s", diff)
	}
}

// checkDocker checks what Docker and kind read.
func checkDocker(t *testing.T, path layout.Path, tags ...string) {
	t.Helper()
	var images []dockerImage
	must(t, json.Unmarshal(contents(t, filepath.Join(string(path), "manifest.json")), &images))
	var got []string
	for _, i := range images {
		got = append(got, i.RepoTags...)
		for _, b := range append(i.Layers, i.Config) {
			if _, err := os.Stat(filepath.Join(string(path), b)); err != nil {
				t.Error(err)
			}
		}
	}
	if diff := cmp.Diff(tags, got); diff != "" {
		t.Errorf("tags -want +got\n%s", diff)
	}
}

func TestWriteRefuses(t *testing.T) {
	program := []Platform{{Architecture: "amd64", Files: map[string]string{"/a": os.Args[0]}}}
	with := func(path, source string) []Platform {
		return []Platform{{Architecture: "amd64", Files: map[string]string{path: source}}}
	}
	for name, img := range map[string]Image{
		"no name":       {Platforms: program},
		"no tag":        {Name: "x", Platforms: program},
		"no platform":   {Name: "x:v1"},
		"relative path": {Name: "x:v1", Platforms: with("a", os.Args[0])},
		"unclean path":  {Name: "x:v1", Platforms: with("/b/../a", os.Args[0])},
		"no such file":  {Name: "x:v1", Platforms: with("/a", "/nonexistent")},
	} {
		if err := Write(filepath.Join(t.TempDir(), "x.tar"), img); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
