// Package oci writes container images without a registry and without a builder: one layer of files for each
// architecture, in an OCI archive that any tool can load or push.
//
//	err := oci.Write("echo.tar", oci.Program("docker.io/lab/echo:v1", "bin/echo"))
//
// The same input must give the same bytes.
package oci

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image describes an image from scratch.
type Image struct {
	// Name is the full reference, such as docker.io/lab/echo:v1.
	Name       string
	Entrypoint []string
	User       string
	Env        []string
	Created    time.Time
	Labels     map[string]string
	Platforms  []Platform
}

// Platform is the image for one architecture of Linux.
type Platform struct {
	// Architecture is the name in Go.
	Architecture string
	// Files maps an absolute path in the image to a path on this machine.
	Files map[string]string
}

// variant returns the variant of the architecture: code for arm is for ARMv7.
func (p Platform) variant() string {
	if p.Architecture == "arm" {
		return "v7"
	}
	return ""
}

// Program returns the image of one static program for this machine, which runs without rights.
func Program(name, source string) Image {
	path := "/" + filepath.Base(source)
	platform := Platform{
		Architecture: runtime.GOARCH,
		Files:        map[string]string{path: source},
	}
	return Image{
		Name:       name,
		Entrypoint: []string{path},
		User:       "65532:65532",
		Platforms:  []Platform{platform},
	}
}

// dockerImage is an entry of manifest.json, which "docker load" without containerd's image store reads, and kind.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Write writes the image as an archive. An image for several architectures is one index, from which each tool takes
// what it needs. Docker's own image store has no indexes: there each architecture has a tag of its own,
// NAME-ARCHITECTURE.
func Write(file string, img Image) error {
	err := img.write(file)
	if err != nil {
		return fmt.Errorf("write image %q: %w", img.Name, err)
	}

	return nil
}

// write writes the image as an archive.
func (i Image) write(file string) (err error) {
	tag := i.Name[strings.LastIndexByte(i.Name, ':')+1:]
	hasTag := i.Name != "" && tag != i.Name
	if !hasTag || len(i.Platforms) == 0 {
		return errors.New("want a name, a tag and a platform")
	}

	dir, err := os.MkdirTemp("", "oci-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	images, docker, err := i.platforms()
	if err != nil {
		return err
	}

	top := images[0]
	if len(images) > 1 {
		top = i.index(images)
	}

	// containerd takes the image's name from the first annotation, and other tools its tag from the second.
	top.Annotations = map[string]string{
		"io.containerd.image.name":          i.Name,
		"org.opencontainers.image.ref.name": tag,
	}
	path, err := layout.Write(dir, mutate.AppendManifests(empty.Index, top))
	if err != nil {
		return err
	}

	manifest, _ := json.Marshal(docker) // strings have no errors
	err = path.WriteFile("manifest.json", manifest, 0o644)
	if err != nil {
		return err
	}

	return Archive(file, dir, "", i.Created)
}

// index returns the index of several images. Registries show its labels.
func (i Image) index(images []mutate.IndexAddendum) mutate.IndexAddendum {
	index := mutate.AppendManifests(empty.Index, images...)
	labelled := mutate.Annotations(index, i.Labels)
	return mutate.IndexAddendum{Add: labelled.(v1.ImageIndex)}
}

// platforms returns the images of all platforms, as entries of an index and of manifest.json.
func (i Image) platforms() (out []mutate.IndexAddendum, docker []dockerImage, err error) {
	byArchitecture := func(a, b Platform) int { return cmp.Compare(a.Architecture, b.Architecture) }
	for _, p := range slices.SortedFunc(slices.Values(i.Platforms), byArchitecture) {
		image, err := i.on(p)
		if err != nil {
			return nil, nil, err
		}

		manifest, err := image.Manifest()
		if err != nil {
			return nil, nil, err
		}

		out = append(out, mutate.IndexAddendum{
			Add: image,
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{
					OS:           "linux",
					Architecture: p.Architecture,
					Variant:      p.variant(),
				},
			},
		})
		name := i.Name
		if len(i.Platforms) > 1 {
			name += "-" + p.Architecture
		}

		d := dockerImage{Config: blob(manifest.Config.Digest), RepoTags: []string{name}}
		for _, l := range manifest.Layers {
			d.Layers = append(d.Layers, blob(l.Digest))
		}

		docker = append(docker, d)
	}

	return out, docker, nil
}

// blob returns the path of a blob in an OCI layout.
func blob(h v1.Hash) string {
	return "blobs/" + h.Algorithm + "/" + h.Hex
}

// on returns the image of one platform.
func (i Image) on(p Platform) (v1.Image, error) {
	opener, err := files(p.Files, i.Created)
	if err != nil {
		return nil, err
	}

	layer, err := tarball.LayerFromOpener(
		opener,
		tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression),
		tarball.WithCompressedCaching,
	)
	if err != nil {
		return nil, err
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: p.Architecture,
		Variant:      p.variant(),
		Created:      v1.Time{Time: i.Created},
		Config: v1.Config{
			Entrypoint: i.Entrypoint,
			User:       i.User,
			Env:        i.Env,
			Labels:     i.Labels,
		},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}

	return mutate.Append(image, mutate.Addendum{
		Layer: layer,
		History: v1.History{
			Created:   v1.Time{Time: i.Created},
			CreatedBy: "files",
		},
	})
}
