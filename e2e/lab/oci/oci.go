// Package oci writes container images without a registry and without a
// builder: an OCI image layout in a tar, which docker load takes too, one layer of static files, the same
// bytes for the same input.
package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
)

// Media types and annotations of https://github.com/opencontainers/image-spec.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
	// containerd takes the image's name from this annotation on import.
	nameAnnotation = "io.containerd.image.name"
)

// File is a regular file of an image.
type File struct {
	Source string // path of its content on this machine
	Mode   int64
}

// Image describes an image from scratch.
type Image struct {
	Name       string // full reference: docker.io/lab/echo:v1
	Entrypoint []string
	Files      map[string]File // by absolute path
	User       string
	Env        []string
}

// Program returns the image of one static program, which runs as nobody.
func Program(name, source string) Image {
	path := "/" + path.Base(source)
	return Image{Name: name, Entrypoint: []string{path}, Files: map[string]File{path: {Source: source, Mode: 0o755}}, User: "65532:65532"}
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type runConfig struct {
	User       string   `json:"User,omitempty"`
	Env        []string `json:"Env,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type config struct {
	platform
	Config runConfig `json:"config"`
	RootFS rootFS    `json:"rootfs"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// archived is an image in manifest.json, which docker load and kind load read in place of the layout.
type archived struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// Write writes the image as a tar.
func Write(w io.Writer, img Image) error {
	if img.Name == "" {
		return fmt.Errorf("write image: no name")
	}
	layerTar, err := layer(img.Files)
	if err != nil {
		return fmt.Errorf("write layer of %s: %w", img.Name, err)
	}
	layerGz, err := compress(layerTar)
	if err != nil {
		return fmt.Errorf("compress layer of %s: %w", img.Name, err)
	}
	p := platform{Architecture: runtime.GOARCH, OS: "linux"}
	cfg, err := json.Marshal(config{
		platform: p,
		Config:   runConfig{User: img.User, Env: img.Env, Entrypoint: img.Entrypoint},
		RootFS:   rootFS{Type: "layers", DiffIDs: []string{digest(layerTar)}},
	})
	if err != nil {
		return err
	}
	man, err := json.Marshal(manifest{
		SchemaVersion: 2, MediaType: typeManifest,
		Config: describe(typeConfig, cfg),
		Layers: []descriptor{describe(typeLayer, layerGz)},
	})
	if err != nil {
		return err
	}
	top := describe(typeManifest, man)
	top.Platform = &p
	top.Annotations = map[string]string{nameAnnotation: img.Name}
	idx, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{top}})
	if err != nil {
		return err
	}
	legacy, err := json.Marshal([]archived{{Config: blobPath(cfg), RepoTags: []string{img.Name}, Layers: []string{blobPath(layerGz)}}})
	if err != nil {
		return err
	}
	entries := map[string][]byte{
		"oci-layout":    []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json":    idx,
		"manifest.json": legacy,
	}
	for _, blob := range [][]byte{cfg, layerGz, man} {
		entries[blobPath(blob)] = blob
	}
	return writeTar(w, entries)
}

func writeTar(w io.Writer, entries map[string][]byte) error {
	tw := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := add(tw, &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, entries[name]); err != nil {
			return err
		}
	}
	return tw.Close()
}

// layer returns the uncompressed layer: the files, their parents, and /tmp.
func layer(files map[string]File) ([]byte, error) {
	dirs := map[string]int64{"tmp": 0o1777}
	for name := range files {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return nil, fmt.Errorf("path %q in image: want a clean absolute path", name)
		}
		for d := path.Dir(name[1:]); d != "."; d = path.Dir(d) {
			if _, ok := dirs[d]; !ok {
				dirs[d] = 0o755
			}
		}
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		if err := add(tw, &tar.Header{Name: d + "/", Mode: dirs[d], Typeflag: tar.TypeDir}, nil); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name].Source)
		if err != nil {
			return nil, err
		}
		if err := add(tw, &tar.Header{Name: name[1:], Mode: files[name].Mode, Typeflag: tar.TypeReg}, content); err != nil {
			return nil, err
		}
	}
	// The end of the archive is written by Close.
	err := tw.Close()
	return buf.Bytes(), err
}

// add leaves times and owners at zero, for the same input gives the same image.
func add(tw *tar.Writer, h *tar.Header, content []byte) error {
	h.Size = int64(len(content))
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := tw.Write(content)
	return err
}

func compress(b []byte) ([]byte, error) {
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	if _, err := gz.Write(b); err != nil {
		return nil, err
	}
	err := gz.Close()
	return buf.Bytes(), err
}

func describe(mediaType string, b []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digest(b), Size: len(b)}
}

func digest(b []byte) string { return "sha256:" + hash(b) }

func blobPath(b []byte) string { return "blobs/sha256/" + hash(b) }

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
