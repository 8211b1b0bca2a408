package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pushed are the references of a release in a registry. Each ends with a digest.
type pushed struct {
	images []string
	chart  string
}

// charts returns the repository below which the chart is. The chart has the name of an image.
func (r release) charts() string {
	return r.push + "/charts"
}

// checkPush checks the registry before anything is built.
func (r release) checkPush() error {
	if r.push == "" {
		return nil
	}

	if r.key == "" {
		return errors.New(
			"a release is pushed with a signature: want KEY=FILE, which make cosign.key makes, or KEY=keyless",
		)
	}

	repository, err := name.NewRepository(r.charts(), name.WithDefaultRegistry(""))
	isComplete := err == nil && repository.RegistryStr() != ""
	if !isComplete || path.Clean(r.push) != r.push {
		return errors.Join(fmt.Errorf("push to %q: want HOST:PORT/PATH", r.push), err)
	}

	return nil
}

// isPlainHTTP reports whether the registry is used without TLS. cosign does that on this machine and at private IPv4
// addresses.
func (r release) isPlainHTTP() bool {
	repository, err := name.NewRepository(r.charts())
	return err == nil && repository.Scheme() == "http"
}

// pushAll pushes both images and the chart.
func (r release) pushAll(ctx context.Context) (p pushed, err error) {
	for _, i := range []image{daemons, proxies} {
		archive := filepath.Join(r.out, i.archive)
		digest, err := pushImage(ctx, archive, r.name(i))
		if err != nil {
			return p, fmt.Errorf("push %s: %w", r.name(i), err)
		}

		p.images = append(p.images, r.repository(i)+"@"+digest)
	}

	digest, err := r.pushChart(ctx)
	p.chart = r.charts() + "/holdfast@" + digest
	return p, err
}

// pushImage pushes the image of an archive, unchanged, and returns its digest.
func pushImage(ctx context.Context, archive, to string) (digest string, err error) {
	tag, err := name.NewTag(to)
	if err != nil {
		return "", err
	}

	dir, err := os.MkdirTemp("", "push-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	_, err = output(ctx, "tar", "-xf", archive, "-C", dir)
	if err != nil {
		return "", err
	}

	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", err
	}

	images, err := partial.Manifests(index)
	if err != nil {
		return "", err
	}

	if len(images) != 1 {
		return "", fmt.Errorf("%s has %d images, want one", archive, len(images))
	}

	hash, err := images[0].Digest()
	if err != nil {
		return "", err
	}

	image, isWhole := images[0].(remote.Taggable)
	if !isWhole {
		return "", fmt.Errorf("%s has neither an image nor an index", archive)
	}

	auth := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	err = remote.Push(tag, image, remote.WithContext(ctx), auth)
	return hash.String(), err
}

// digestOfChart matches the digest that Helm reports after a push. The registry is not asked: it could name another
// one.
var digestOfChart = regexp.MustCompile(`(?m)^Digest: (sha256:[0-9a-f]{64})$`)

// pushChart pushes the chart and returns its digest.
func (r release) pushChart(ctx context.Context) (string, error) {
	// Helm writes the time of the file into the manifest, in the zone of this machine.
	argv := []string{"env", "TZ=UTC", r.helm, "push", r.packed(), "oci://" + r.charts()}
	if r.isPlainHTTP() {
		argv = append(argv, "--plain-http")
	}

	report, err := output(ctx, argv...)
	if err != nil {
		return "", err
	}

	m := digestOfChart.FindStringSubmatch(report)
	if m == nil {
		return "", fmt.Errorf("push the chart: Helm reports no digest: %q", report)
	}

	return m[1], nil
}
