package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// smallRelease makes what is pushed of a release for a registry: the chart, and images of one small file for two
// architectures.
func smallRelease(t *testing.T, push string) release {
	t.Helper()
	t.Chdir("..")
	helm, err := filepath.Abs("bin/helm")
	must(t, err)
	if _, err := os.Stat(helm); err != nil {
		t.Skip("no bin/helm here: run make bin/helm")
	}
	chart, err := readChart()
	must(t, err)
	r := release{
		source: source{version: "1.2.3", commit: strings.Repeat("0a", 20), date: time.Unix(1_700_000_000, 0).UTC()},
		chart:  chart, out: t.TempDir(), helm: helm, push: push, architectures: []string{"amd64", "arm"},
	}
	must(t, r.packChart(t.Context()))
	for _, i := range []image{daemons, proxies} {
		img := oci.Image{Name: r.name(i)}
		for _, a := range r.architectures {
			img.Platforms = append(img.Platforms, oci.Platform{Architecture: a, Files: map[string]string{"/" + a: "LICENSE"}})
		}
		must(t, oci.Write(filepath.Join(r.out, i.archive), img))
	}
	return r
}

// digestOf returns the digest of the image in an archive.
func digestOf(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	_, err := output(t.Context(), "tar", "-xf", archive, "-C", dir)
	must(t, err)
	index, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	return manifest.Manifests[0].Digest.String()
}

// inRegistry returns the digest by which a registry has a tag.
func inRegistry(t *testing.T, tag string) string {
	t.Helper()
	reference, err := name.NewTag(tag)
	must(t, err)
	found, err := remote.Get(reference)
	must(t, err)
	return found.Digest.String()
}

// TestPush: the registry has the images and the chart by the digests that the release reports, the chart names these
// images, and another push of the same release changes nothing.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	r := smallRelease(t, strings.TrimPrefix(server.URL, "http://")+"/a/b")
	first, err := r.pushAll(t.Context())
	must(t, err)

	for i, img := range []image{daemons, proxies} {
		digest := digestOf(t, filepath.Join(r.out, img.archive))
		if want := r.push + "/" + strings.TrimSuffix(img.archive, ".tar") + "@" + digest; first.images[i] != want {
			t.Errorf("pushed %s, want %s", first.images[i], want)
		}
		if got := inRegistry(t, r.name(img)); got != digest {
			t.Errorf("%s is %s in the registry, and %s in the archive", r.name(img), got, digest)
		}
	}
	chart := r.push + "/charts/holdfast"
	if want := chart + "@" + inRegistry(t, chart+":1.2.3"); first.chart != want {
		t.Errorf("pushed %s, want %s", first.chart, want)
	}

	dir := t.TempDir()
	from := []string{"oci://" + chart, "--version", "1.2.3", "--plain-http"}
	_, err = output(t.Context(), append([]string{r.helm, "pull", "--destination", dir}, from...)...)
	must(t, err)
	packed, err := os.ReadFile(r.packed())
	must(t, err)
	if pulled, err := os.ReadFile(filepath.Join(dir, "holdfast-1.2.3.tgz")); err != nil || !bytes.Equal(pulled, packed) {
		t.Errorf("the registry has another chart: %v", err)
	}
	objects, err := output(t.Context(),
		append([]string{r.helm, "template", "--set", "proxy.enabled=true", "x"}, from...)...)
	must(t, err)
	for line := range strings.Lines(objects) {
		if _, image, isImage := strings.Cut(line, " image: "); isImage {
			if image = strings.TrimSpace(image); image != r.name(daemons) && image != r.name(proxies) {
				t.Errorf("the chart has the image %s", image)
			}
		}
	}
	for _, image := range []string{r.name(daemons), r.name(proxies)} {
		if !strings.Contains(objects, " image: "+image+"\n") {
			t.Errorf("the chart does not have the image %s", image)
		}
	}

	t.Setenv("TZ", "Asia/Tokyo")
	must(t, r.packChart(t.Context()))
	second, err := r.pushAll(t.Context())
	must(t, err)
	if second.chart != first.chart {
		t.Errorf("the same chart is %s and %s", first.chart, second.chart)
	}
}

func TestPushRefuses(t *testing.T) {
	for _, tt := range []struct{ push, key, want string }{
		{"", "", ""},
		{"", "cosign.key", ""},
		{"localhost:5000", "cosign.key", ""},
		{"ghcr.io/a/b", keyless, ""},
		{"ghcr.io/a/b", "", "make cosign.key"},
		{"a/b", "cosign.key", "want HOST:PORT/PATH"},
		{"localhost:5000/", "cosign.key", "want HOST:PORT/PATH"},
		{"localhost:5000/A", "cosign.key", "want HOST:PORT/PATH"},
		{"https://localhost:5000/a", "cosign.key", "want HOST:PORT/PATH"},
	} {
		err := release{push: tt.push, key: tt.key}.checkPush()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("PUSH=%s KEY=%s: %v, want %q", tt.push, tt.key, err, tt.want)
		}
	}
}
